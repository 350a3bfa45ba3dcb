// Package kit is the common part of the client programs in Go; see ../../python/kit.py.
package kit

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"time"
)

// End is when the behaviour is over.
var End = time.Now().Add(seconds())

func seconds() time.Duration {
	text := os.Getenv("SECONDS")
	if text == "" {
		text = "20"
	}
	seconds, err := strconv.ParseFloat(text, 64)
	Check(err)
	return time.Duration(seconds * float64(time.Second))
}

// Behaviour is the one to play.
var Behaviour = os.Args[1]

// IsOver says whether the time is over.
func IsOver() bool {
	return time.Now().After(End)
}

// Wait waits until it is.
func Wait() {
	time.Sleep(time.Until(End))
}

// Check ends the program if something has failed.
func Check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// Version is the one of a module that this program was built with, without its v.
func Version(module string) string {
	info, _ := debug.ReadBuildInfo()
	for _, dependency := range info.Deps {
		if dependency.Path == module {
			return dependency.Version[1:]
		}
	}
	return ""
}

// Say writes down who this is, for the doctor to find out by itself.
func Say(library, version string) {
	if file := os.Getenv("IDENTITY"); file != "" {
		text, err := json.Marshal(map[string]string{"library": library, "version": version})
		Check(err)
		Check(os.WriteFile(file, text, 0o644))
	}
}

// Main plays the behaviour that is named.
func Main(behaviours map[string]func()) {
	behaviour, ok := behaviours[Behaviour]
	if !ok {
		Check(fmt.Errorf("no behaviour %s", Behaviour))
	}
	behaviour()
}
