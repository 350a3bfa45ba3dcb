// Package kit is the common part of the client programs in Go; see ../../python/kit.py.
package kit

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// Behaviour is the one to play.
var Behaviour = os.Args[1]

// End is when the behaviour is over.
var End = time.Now().Add(seconds())

// Body is a message of the usual size.
var Body = make([]byte, 200)

var seen atomic.Int64

func seconds() time.Duration {
	text, isSet := os.LookupEnv("SECONDS")
	if !isSet {
		text = "20"
	}
	seconds, err := strconv.ParseFloat(text, 64)
	Check(err)
	return time.Duration(seconds * float64(time.Second))
}

// IsOver says whether the time is over.
func IsOver() bool {
	return time.Now().After(End)
}

// Every calls do until the time is over, with this pause after each call.
func Every(pause time.Duration, do func()) {
	for !IsOver() {
		do()
		time.Sleep(pause)
	}
}

// Saw counts messages that came.
func Saw(messages int) {
	seen.Add(int64(messages))
}

// UntilSeen waits until the time is over. It is an error if no message has come.
func UntilSeen() {
	time.Sleep(time.Until(End))
	if seen.Load() == 0 {
		Check(errors.New("nothing came"))
	}
}

// Together runs all of these at the same time, and waits for their end.
func Together(all ...func()) {
	var group sync.WaitGroup
	for _, do := range all {
		group.Add(1)
		go func() {
			defer group.Done()
			do()
		}()
	}
	group.Wait()
}

// Check ends the program if something has failed.
func Check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// Must returns the value of a call that has to succeed.
func Must[T any](value T, err error) T {
	Check(err)
	return value
}

// Main plays the behaviour that the argument names. It writes library and version into IDENTITY, to be
// compared with what the broker recognises. The version of the module is added to version.
func Main(library, version, module string, behaviours map[string]func()) {
	info, _ := debug.ReadBuildInfo()
	for _, dependency := range info.Deps {
		if dependency.Path == module {
			version += dependency.Version[1:]
		}
	}
	if file := os.Getenv("IDENTITY"); file != "" {
		text := Must(json.Marshal(map[string]string{"library": library, "version": version}))
		Check(os.WriteFile(file, text, 0o644))
	}
	behaviour, ok := behaviours[Behaviour]
	if !ok {
		Check(fmt.Errorf("no behaviour %s", Behaviour))
	}
	behaviour()
}
