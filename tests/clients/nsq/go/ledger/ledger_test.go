package ledger

import (
	"strings"
	"testing"
)

func TestFaults(t *testing.T) {
	for name, c := range map[string]struct {
		delivered []string
		fault     string
	}{
		"all":          {[]string{"0 0", "0 1", "0 2", "0 1"}, ""},
		"one missing":  {[]string{"0 0", "0 2"}, "1 of 3 messages"},
		"invented":     {[]string{"0 0", "0 1", "0 2", "0 9"}, "nobody sent"},
		"not a number": {[]string{"0 0", "0 1", "0 2", "what"}, "nobody sent"},
		"out of order": {[]string{"0 0", "0 2", "0 1"}, "1 messages came out of order"},
	} {
		book := New(1)
		early := book.Reader()
		first, bodies := book.Attempt(0, 3)
		if first != 0 || string(bodies[2]) != "0 2" {
			t.Fatalf("bodies %q", bodies)
		}
		early.Delivered([]byte("0 1")) // may come before its answer
		book.Confirm(0, 0, 3)
		if early.Missing() != 2 {
			t.Errorf("%s: %d missing", name, early.Missing())
		}
		reader := book.Reader()
		for _, body := range c.delivered {
			reader.Delivered([]byte(body))
		}
		found := reader.Faults(true)
		if (c.fault == "") != (found == "") || !strings.Contains(found, c.fault) {
			t.Errorf("%s: %q", name, found)
		}
	}
}
