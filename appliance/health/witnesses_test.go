package health

import (
	"strings"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance/witness"
)

func TestWhatIsSaidOfWitnesses(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 22, 7, 0, 0, 0, time.UTC)
	cosigned := func(ago time.Duration) *witness.Witnessed {
		return &witness.Witnessed{Records: 7, Time: now.Add(-ago)}
	}
	well := witness.WitnessNews{Name: "w1", URL: "https://w1.example", Records: 7}
	away := witness.WitnessNews{Name: "w2", URL: "https://w2.example", Fault: "connection\x1brefused", Since: now}
	liar := witness.WitnessNews{Name: "w3", URL: "https://w3.example", Fault: "it has cosigned 9 records", Since: now,
		Contradicts: true}
	tests := map[string]struct {
		status   witness.Status
		interval time.Duration
		want     []string // state and detail of each finding
	}{
		"all is well": {witness.Status{Policy: true, Names: true,
			Newest: cosigned(29 * time.Minute), Witnesses: []witness.WitnessNews{well}}, time.Minute,
			[]string{"ok a quorum has cosigned 7 records, 29m0s ago"}},
		"none yet": {witness.Status{Policy: true, Names: true}, time.Minute,
			[]string{"warn no checkpoint has a quorum of witnesses yet"}},
		"an old one": {witness.Status{Policy: true, Names: true,
			Newest: cosigned(31 * time.Minute)}, time.Minute,
			[]string{"warn the newest witnessed checkpoint is 31m0s old, of 7 records; it should be less than 30m0s"}},
		"an old one, and a long interval": {witness.Status{Policy: true, Names: true,
			Newest: cosigned(31 * time.Minute)}, time.Hour, []string{"ok "}},
		"one that is away": {witness.Status{Policy: true, Names: true, Newest: cosigned(0),
			Witnesses: []witness.WitnessNews{well, away}}, time.Minute, []string{"ok ",
			"warn w2 (https://w2.example) has not cosigned since 2026-11-22"}},
		"one that contradicts": {witness.Status{Policy: true, Names: true, Newest: cosigned(0),
			Witnesses: []witness.WitnessNews{liar}}, time.Minute, []string{"ok ",
			"fail w3 (https://w3.example) contradicts the journal since 2026-11-22"}},
		"a policy of another log": {witness.Status{Policy: true, Newest: cosigned(0)}, time.Minute,
			[]string{"ok ", "warn the policy names other logs"}},
		"no policy": {witness.Status{}, time.Minute, nil},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test.status.Interval = test.interval
			found := Witnesses(test.status, now)
			if len(found) != len(test.want) {
				t.Fatalf("%+v", found)
			}
			for i, f := range found {
				if said := string(f.State) + " " + f.Detail; !strings.HasPrefix(said, test.want[i]) ||
					strings.Contains(said, "\x1b") || (f.State == OK) != (f.Remedy == "") {
					t.Errorf("%q, remedy %q; want %q", said, f.Remedy, test.want[i])
				}
			}
		})
	}
}
