// Package ledger keeps what was published and what came back, and says what is wrong between them.
//
// A body is "PRODUCER SEQUENCE". A producer never publishes a sequence number twice, so a body that
// comes twice was delivered twice.
package ledger

import (
	"fmt"
	"strings"
	"sync"
)

// Ledger is the account of one topic.
type Ledger struct {
	mutex     sync.Mutex
	producers []producer
}

type producer struct {
	attempted int   // sequence numbers 0..attempted were sent
	confirmed []int // of these the broker has answered OK
}

// New makes the account of so many producers.
func New(producers int) *Ledger {
	return &Ledger{producers: make([]producer, producers)}
}

// Attempt names the next count bodies of a producer and returns its first sequence number.
func (l *Ledger) Attempt(producer, count int) (int, [][]byte) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	first := l.producers[producer].attempted
	l.producers[producer].attempted += count
	bodies := make([][]byte, count)
	for i := range bodies {
		bodies[i] = []byte(fmt.Sprintf("%d %d", producer, first+i))
	}
	return first, bodies
}

// Confirm notes that the broker has answered OK.
func (l *Ledger) Confirm(producer, first, count int) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	for i := 0; i < count; i++ {
		l.producers[producer].confirmed = append(l.producers[producer].confirmed, first+i)
	}
}

// Confirmed is the number of messages that the broker has answered OK.
func (l *Ledger) Confirmed() int {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	n := 0
	for _, p := range l.producers {
		n += len(p.confirmed)
	}
	return n
}

// Reader is what one channel has delivered.
type Reader struct {
	ledger    *Ledger
	mutex     sync.Mutex
	seen      []map[int]bool
	highest   []int
	disorder  int
	invented  []string
	delivered int
}

// Reader begins the account of a channel.
func (l *Ledger) Reader() *Reader {
	r := &Reader{ledger: l}
	for range l.producers {
		r.seen = append(r.seen, map[int]bool{})
		r.highest = append(r.highest, -1)
	}
	return r
}

// Delivered notes a delivery.
func (r *Reader) Delivered(body []byte) {
	r.ledger.mutex.Lock()
	defer r.ledger.mutex.Unlock()
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.delivered++
	var producer, sequence int
	n, err := fmt.Sscanf(string(body), "%d %d", &producer, &sequence)
	if n != 2 || err != nil || producer >= len(r.seen) ||
		sequence >= r.ledger.producers[producer].attempted {
		r.invented = append(r.invented, string(body))
		return
	}
	if r.seen[producer][sequence] {
		return
	}
	r.seen[producer][sequence] = true
	// Order is a promise about first deliveries: a redelivery comes late by its nature.
	if sequence < r.highest[producer] {
		r.disorder++
	} else {
		r.highest[producer] = sequence
	}
}

// Missing counts the messages that were answered OK and have not come.
func (r *Reader) Missing() int {
	r.ledger.mutex.Lock()
	defer r.ledger.mutex.Unlock()
	r.mutex.Lock()
	defer r.mutex.Unlock()
	missing := 0
	for i, p := range r.ledger.producers {
		for _, sequence := range p.confirmed {
			if !r.seen[i][sequence] {
				missing++
			}
		}
	}
	return missing
}

// Twice counts deliveries beyond the first.
func (r *Reader) Twice() int {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	n := r.delivered - len(r.invented)
	for _, seen := range r.seen {
		n -= len(seen)
	}
	return n
}

// Faults says what is wrong; nothing is an empty string.
func (r *Reader) Faults(ordered bool) string {
	var faults []string
	if missing := r.Missing(); missing > 0 {
		faults = append(faults, fmt.Sprintf("%d messages that were answered OK are missing", missing))
	}
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if len(r.invented) > 0 {
		faults = append(faults, fmt.Sprintf("%d messages that nobody sent, such as %q",
			len(r.invented), r.invented[0]))
	}
	if ordered && r.disorder > 0 {
		faults = append(faults, fmt.Sprintf("%d messages came out of order", r.disorder))
	}
	return strings.Join(faults, "; ")
}
