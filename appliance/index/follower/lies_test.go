package follower_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/attestd/attestd/api/upstream"
	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/follower"
	"github.com/attestd/attestd/appliance/index/follower/followertest"
	"github.com/attestd/attestd/store/replica"
)

// victim is a packet with several transfers.
type victim struct {
	packet    string   // its hash
	transfers []string // keys
}

func (r *rig) victim() (v victim) {
	r.Helper()
	view(r.T, r.upstream.Index, func(s index.Snapshot) error {
		transfers, err := s.Transfers(r.Context(), index.TransferQuery{TransferIndex: new(int32(1))})
		if err != nil {
			return err
		}
		v.packet, _ = transfers[len(transfers)-1].Text(index.TransferType.MustField("packet_hash").Number)
		transfers, err = s.Transfers(r.Context(), index.TransferQuery{PacketHash: v.packet})
		for _, row := range transfers {
			v.transfers = append(v.transfers, row.Key())
		}
		return err
	})
	return v
}

// second reports whether an object of an answer is the victim's second transfer and has the field.
func (v victim) second(object map[string]any, field string) bool {
	_, has := object[field]
	return has && object["packet_hash"] == v.packet && fmt.Sprint(object["transfer_index"]) == "1"
}

// is reports whether an object of an answer is the victim itself.
func (v victim) is(object map[string]any) bool {
	_, transfer := object["transfer_index"]
	return !transfer && object["packet_hash"] == v.packet
}

// otherHex changes the last digit of a hex text.
func otherHex(text string) string {
	last := "0"
	if strings.HasSuffix(text, last) {
		last = "1"
	}
	return text[:len(text)-1] + last
}

func prefixed(prefix string, texts []string) (all []string) {
	for _, text := range texts {
		all = append(all, prefix+text)
	}
	return all
}

// lie is a statement about the victim that contradicts the packet's bytes.
type lie struct {
	what string
	tell func(v victim, object map[string]any)
	// apart is quarantined and missing is absent from the replica while the upstream lies. stays remains quarantined
	// afterwards.
	apart, missing func(v victim) []string
}

var lies = []lie{
	{
		what: "an amount",
		tell: func(v victim, object map[string]any) {
			if v.second(object, "base_amount") {
				object["base_amount"] = "1"
			}
		},
		apart:   func(v victim) []string { return []string{"transfer " + v.packet + "/1"} },
		missing: func(v victim) []string { return []string{"transfer " + v.packet + "/1"} },
	},
	{
		what: "a sender",
		tell: func(v victim, object map[string]any) {
			if v.second(object, "sender_canonical") {
				object["sender_canonical"] = "0x" + strings.Repeat("1", 40)
			}
		},
		apart:   func(v victim) []string { return []string{"transfer " + v.packet + "/1"} },
		missing: func(v victim) []string { return []string{"transfer " + v.packet + "/1"} },
	},
	{
		what: "data",
		tell: func(v victim, object map[string]any) {
			if data, ok := object["data"].(string); ok && v.is(object) {
				object["data"] = otherHex(data)
			}
		},
		apart:   func(v victim) []string { return append(prefixed("transfer ", v.transfers), "packet "+v.packet) },
		missing: func(v victim) []string { return append(prefixed("transfer ", v.transfers), "packet "+v.packet) },
	},
	{
		what: "a hash",
		tell: func(v victim, object map[string]any) {
			if v.is(object) {
				object["packet_hash"] = otherHex(v.packet)
			}
		},
		apart: func(v victim) []string {
			return append(prefixed("transfer ", v.transfers), "packet "+otherHex(v.packet))
		},
		missing: func(v victim) []string { return append(prefixed("transfer ", v.transfers), "packet "+v.packet) },
	},
}

func TestALieIsKeptApart(t *testing.T) {
	t.Parallel()
	for _, lie := range lies {
		t.Run(lie.what, func(t *testing.T) {
			r := newRig(t, 200)
			v := r.victim()
			r.proxy.Lie(followertest.AlterObjects(func(object map[string]any) { lie.tell(v, object) }))
			f := r.follower()
			r.sync(f)
			want := slices.Sorted(slices.Values(lie.apart(v)))
			if got := apart(t, r.index); !slices.Equal(got, want) {
				t.Errorf("quarantined are %q, want %q", got, want)
			}
			var missing []string
			for _, id := range lie.missing(v) {
				missing = append(missing, id+" is missing")
			}
			slices.Sort(missing)
			differences := followertest.Differences(t, r.upstream.Index, r.index)
			if slices.Sort(differences); !slices.Equal(differences, missing) {
				t.Errorf("differences %q, want %q", differences, missing)
			}
			if s := f.Status(); s.Unverified != uint64(len(want)) {
				t.Errorf("%+v", s)
			}

			r.reopen(replica.Options{ServeUnverified: true})
			for _, kind := range []*index.Type{index.PacketType, index.TransferType} {
				served := keys(t, r.index, kind)
				for _, id := range want {
					if key, ok := strings.CutPrefix(id, kind.Name+" "); ok && !slices.Contains(served, key) {
						t.Errorf("%s is not served", id)
					}
				}
			}
			r.reopen(replica.Options{})

			r.proxy.Lie(nil)
			r.start()
			r.awaitEqual()
			followertest.Await(t, within, "nothing is quarantined", func() bool { return len(apart(t, r.index)) == 0 })
		})
	}
}

// Quarantined rows count once, whether they are served or not: rows that the upstream counts and does not list stay
// visible.
func TestMissingRowsAreCountedBesideQuarantinedOnes(t *testing.T) {
	r := newRig(t, 200)
	v := r.victim()
	r.proxy.Lie(followertest.AlterObjects(func(object map[string]any) {
		if v.is(object) {
			object["packet_hash"] = otherHex(v.packet)
		}
		if listed, err := strconv.Atoi(fmt.Sprint(object["value"])); err == nil &&
			object["name"] == index.StatTransfers {
			object["value"] = strconv.Itoa(listed + 3)
		}
	}))
	r.sync(r.follower())
	var unserved *follower.Status
	for _, serve := range []bool{false, true} {
		r.reopen(replica.Options{ServeUnverified: serve})
		f := r.follower()
		r.sync(f)
		s := f.Status()
		if unserved == nil {
			unserved = &s
		}
		if s.Unverified == 0 || s.Unverified != unserved.Unverified || s.LagRows < 3 || s.LagRows != unserved.LagRows {
			t.Errorf("served %t: %d rows are missing beside %d in quarantine, want %d beside %d", serve, s.LagRows,
				s.Unverified, unserved.LagRows, unserved.Unverified)
		}
		client, err := upstream.New(upstream.Options{URL: r.proxy.URL(), Timeout: 30 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		report, err := follower.Verify(t.Context(), follower.VerifyOptions{Index: r.index, Upstream: client})
		if err != nil || report.CountsAgree {
			t.Errorf("served %t: counts agree %t, %v", serve, report.CountsAgree, err)
		}
	}
}

// reopen closes the replica's file and opens it with other options.
func (r *rig) reopen(o replica.Options) {
	r.Helper()
	if err := r.index.Close(); err != nil {
		r.Fatal(err)
	}
	r.index = followertest.OpenReplica(r.T, r.path, o)
}

// apart returns the quarantined rows, as kind and key.
func apart(t *testing.T, idx index.Index) (all []string) {
	t.Helper()
	view(t, idx, func(s index.Snapshot) error {
		return s.Unverified(t.Context(), func(u index.Unverified) error {
			if u.Reason == "" || u.Since.IsZero() {
				t.Errorf("%s is quarantined since %s because %q", u.Row.Key(), u.Since, u.Reason)
			}
			all = append(all, u.Row.Type().Name+" "+u.Row.Key())
			return nil
		})
	})
	slices.Sort(all)
	return all
}
