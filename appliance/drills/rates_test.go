package drills

import (
	"bytes"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance/daemontest"
)

// Two appliances share an API key with a rate of 2 per second, and each gets more requests than that. Together they
// allow the rate of one.
func TestDrillARateHoldsForTwoAppliancesTogether(t *testing.T) {
	t.Parallel()
	const rate, window = 2, 5 * time.Second // a leased request outlasts the next lease's delay, also on a slow database
	members := daemontest.NewMembers(t, 2)
	token := strings.TrimSpace(members[0].Run(t, "key", "create", "--name", "a", "--rate", "2/s"))
	for _, m := range members {
		m.Start(t)
		defer m.Kill(t)
	}
	var passed atomic.Int64
	var limited refusals
	var workers sync.WaitGroup
	began := time.Now()
	for i := range 8 {
		workers.Go(func() {
			for time.Since(began) < window {
				switch status := askOnce(t, members[i%2].URL, token); status {
				case http.StatusOK:
					passed.Add(1)
				case http.StatusTooManyRequests:
					limited.add(time.Now())
				default:
					t.Errorf("status %d", status)
				}
			}
		})
	}
	workers.Wait()
	seconds, asked := time.Since(began).Seconds(), limited.asked().Seconds()
	const credit = 2                                // one request of each appliance
	least, most := rate*(asked+1), rate*(seconds+1) // with the burst of one second
	for _, m := range members {
		if bytes.Contains(m.Log(), []byte("limits only its own requests")) {
			most *= 2 // the database did not answer for a second
		}
	}
	t.Logf("%d passed in %.1f s, %d were refused; between refusals lie %.1f s", passed.Load(), seconds,
		len(limited.times), asked)
	if n := float64(passed.Load()); n > 1.1*most+credit || n < 0.9*least-credit {
		t.Errorf("%.0f requests passed in %.1f s, want from %.0f to %.0f, give or take a tenth and %d", n, seconds,
			least, most, credit)
	}
	if len(limited.times) == 0 {
		t.Error("nothing was refused: it was not asked for more than the rate")
	}
}

// refusals are the times of refused requests.
type refusals struct {
	mu    sync.Mutex
	times []time.Time
}

func (r *refusals) add(at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.times = append(r.times, at)
}

// asked is the time for which the load exceeded the rate: between two refusals, all credit was spent. It ignores longer
// gaps, in which a busy machine may have sent less.
func (r *refusals) asked() (all time.Duration) {
	slices.SortFunc(r.times, time.Time.Compare)
	for i := 1; i < len(r.times); i++ {
		if gap := r.times[i].Sub(r.times[i-1]); gap < time.Second/2 {
			all += gap
		}
	}
	return all
}

// askOnce requests an attestation and returns the status.
func askOnce(t *testing.T, base, token string) int {
	r := daemontest.RandomRequest()
	body := `{"unspendableAddress":"` + r.UnspendableAddress.String() + `","beneficiary":"` + r.Beneficiary.String() +
		`"}`
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, base+"/functions/v1/attest",
		strings.NewReader(body))
	if err != nil {
		t.Error(err)
		return 0
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Api-Key", token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Error(err)
		return 0
	}
	defer resp.Body.Close()
	return resp.StatusCode
}
