package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"
)

// checkMax is how long a check may take. Only what hangs takes so long; a machine that
// is slow and busy does not decide.
const checkMax = 1800 * time.Second

type check struct {
	name string
	run  func(context.Context) error
}

// runAll prints what came of each check and ends the program; its status is 1 when one failed.
func runAll(checks []check) {
	failed := 0
	for _, check := range checks {
		ctx, cancel := context.WithTimeout(context.Background(), checkMax)
		done := make(chan error, 1)
		go func() { done <- check.run(ctx) }()
		var err error
		select {
		case err = <-done:
		case <-ctx.Done():
			err = fmt.Errorf("took longer than %s", checkMax)
		}
		if err != nil {
			failed = 1
			why := strings.Join(strings.Fields(err.Error()), " ")
			fmt.Printf("not ok %s: %s\n", check.name, why)
		} else {
			fmt.Printf("ok %s\n", check.name)
		}
		cancel()
	}
	os.Exit(failed)
}

var names int

// name is one that nobody else has.
func name() string {
	names++
	return fmt.Sprintf("go-%d-%d", os.Getpid(), names)
}

func same[T comparable](found, expected T, what string) error {
	if found != expected {
		return fmt.Errorf("%s: expected %v, found %v", what, expected, found)
	}
	return nil
}
