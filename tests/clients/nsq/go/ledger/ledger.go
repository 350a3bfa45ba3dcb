// Package ledger keeps what was published and what came back, and says what is wrong between them.
//
// A body is "PRODUCER SEQUENCE". A producer never publishes a sequence number twice, so a body that
// comes twice was delivered twice. Every call costs the same however much has been published: the
// account must not be what slows a consumer down.
package ledger

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"sync"
)

// Ledger is the account of one topic.
type Ledger struct {
	mutex     sync.Mutex
	producers []producer
	readers   []*Reader
	total     int
}

// confirmed has an entry per sequence number sent, true once the broker has answered OK.
type producer struct{ confirmed []bool }

// New makes the account of so many producers.
func New(producers int) *Ledger {
	return &Ledger{producers: make([]producer, producers)}
}

// Attempt names the next count bodies of a producer and returns its first sequence number.
func (l *Ledger) Attempt(producer, count int) (int, [][]byte) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	p := &l.producers[producer]
	first := len(p.confirmed)
	p.confirmed = append(p.confirmed, make([]bool, count)...)
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
	for sequence := first; sequence < first+count; sequence++ {
		l.producers[producer].confirmed[sequence] = true
		l.total++
		for _, r := range l.readers {
			if !r.has(producer, sequence) {
				r.missing++
			}
		}
	}
}

// Confirmed is the number of messages that the broker has answered OK.
func (l *Ledger) Confirmed() int {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.total
}

// Reader is what one channel has delivered. The ledger's lock protects it.
type Reader struct {
	ledger   *Ledger
	seen     [][]bool
	highest  []int
	missing  int
	twice    int
	disorder int
	invented []string
}

// Reader begins the account of a channel.
func (l *Ledger) Reader() *Reader {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	r := &Reader{ledger: l, missing: l.total, seen: make([][]bool, len(l.producers))}
	for range l.producers {
		r.highest = append(r.highest, -1)
	}
	l.readers = append(l.readers, r)
	return r
}

func (r *Reader) has(producer, sequence int) bool {
	return sequence < len(r.seen[producer]) && r.seen[producer][sequence]
}

// Delivered notes a delivery.
func (r *Reader) Delivered(body []byte) {
	r.ledger.mutex.Lock()
	defer r.ledger.mutex.Unlock()
	producer, sequence, ok := r.ledger.parse(body)
	if !ok {
		r.invented = append(r.invented, string(body))
		return
	}
	if r.has(producer, sequence) {
		r.twice++
		return
	}
	for len(r.seen[producer]) <= sequence {
		r.seen[producer] = append(r.seen[producer], false)
	}
	r.seen[producer][sequence] = true
	if r.ledger.producers[producer].confirmed[sequence] {
		r.missing--
	}
	// Order is a promise about first deliveries: a redelivery comes late by its nature.
	if sequence < r.highest[producer] {
		r.disorder++
	} else {
		r.highest[producer] = sequence
	}
}

// parse is false for a body that nobody has sent.
func (l *Ledger) parse(body []byte) (producer, sequence int, ok bool) {
	first, second, found := bytes.Cut(body, []byte(" "))
	if !found {
		return 0, 0, false
	}
	producer, err := strconv.Atoi(string(first))
	if err != nil || producer < 0 || producer >= len(l.producers) {
		return 0, 0, false
	}
	sequence, err = strconv.Atoi(string(second))
	if err != nil || sequence < 0 || sequence >= len(l.producers[producer].confirmed) {
		return 0, 0, false
	}
	return producer, sequence, true
}

// Missing counts the messages that were answered OK and have not come.
func (r *Reader) Missing() int {
	r.ledger.mutex.Lock()
	defer r.ledger.mutex.Unlock()
	return r.missing
}

// Twice counts deliveries beyond the first.
func (r *Reader) Twice() int {
	r.ledger.mutex.Lock()
	defer r.ledger.mutex.Unlock()
	return r.twice
}

// Faults says what is wrong; nothing is an empty string.
func (r *Reader) Faults(ordered bool) string {
	r.ledger.mutex.Lock()
	defer r.ledger.mutex.Unlock()
	var faults []string
	if r.missing > 0 {
		faults = append(faults, fmt.Sprintf("%d of %d messages that were answered OK are missing",
			r.missing, r.ledger.total))
	}
	if len(r.invented) > 0 {
		faults = append(faults, fmt.Sprintf("%d messages that nobody sent, such as %q",
			len(r.invented), r.invented[0]))
	}
	if ordered && r.disorder > 0 {
		faults = append(faults, fmt.Sprintf("%d messages came out of order", r.disorder))
	}
	return strings.Join(faults, "; ")
}
