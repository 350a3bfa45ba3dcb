// Package report prints what came of the checks of a program: `ok NAME` or `not ok NAME: WHY`.
package report

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"
)

// CheckMax is how long a check may take. Only what hangs takes so long; a machine that
// is slow and busy does not decide.
const CheckMax = 1800 * time.Second

// Check is one named check.
type Check struct {
	Name string
	Run  func(context.Context) error
}

// Main runs all checks and ends the program; its status is 1 when one failed.
func Main(checks []Check) {
	failed := 0
	for _, check := range checks {
		ctx, cancel := context.WithTimeout(context.Background(), CheckMax)
		if err := check.Run(ctx); err != nil {
			failed = 1
			why := strings.Join(strings.Fields(err.Error()), " ")
			fmt.Printf("not ok %s: %s\n", check.Name, why)
		} else {
			fmt.Printf("ok %s\n", check.Name)
		}
		cancel()
	}
	os.Exit(failed)
}

var names int

// Name is one that nobody else has.
func Name() string {
	names++
	return fmt.Sprintf("go-%d-%d", os.Getpid(), names)
}

// Until looks until the condition holds.
func Until(ctx context.Context, what string, condition func() bool) error {
	for !condition() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited in vain until %s", what)
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}
