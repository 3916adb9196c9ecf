package daemon

import (
	"slices"
	"testing"

	"github.com/attestd/attestd/store/postgres"
)

func TestDifferencesOfMembers(t *testing.T) {
	t.Parallel()
	same := postgres.Settings{Signer: "0xabc", Scheme: "keccak256", Policy: "12", Screening: "34"}
	member := func(name string, change func(*postgres.Member)) postgres.Member {
		m := postgres.Member{Name: name, Settings: same, Live: true}
		if change != nil {
			change(&m)
		}
		return m
	}
	for name, c := range map[string]struct {
		second func(*postgres.Member)
		want   []string
	}{
		"none": {},
		"a policy": {func(m *postgres.Member) {
			m.Policy = "56"
		}, []string{"policy: 12 (one, three), 56 (two)"}},
		"no policy": {func(m *postgres.Member) {
			m.Policy = ""
		}, []string{"policy: 12 (one, three), none (two)"}},
		"a screening list": {func(m *postgres.Member) {
			m.Screening = ""
		}, []string{"screening_list: 34 (one, three), none (two)"}},
		"the scheme": {func(m *postgres.Member) {
			m.Scheme = "eip712"
		}, []string{"scheme: eip712 (two), keccak256 (one, three)"}},
		"the signer": {func(m *postgres.Member) {
			m.Signer = "0xdef"
		}, []string{"signer: 0xabc (one, three), 0xdef (two)"}},
		"a signer that is unknown": {func(m *postgres.Member) { m.Signer = "" }, nil},
		"one that is gone":         {func(m *postgres.Member) { m.Policy, m.Live = "56", false }, nil},
		"one that starts":          {func(m *postgres.Member) { m.Settings = postgres.Settings{} }, nil},
		"two processes of one name": {func(m *postgres.Member) {
			m.Shared = true
		}, []string{"name: two processes use two"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got []string
			for _, d := range differences(
				[]postgres.Member{member("one", nil), member("three", nil), member("two", c.second)}) {
				got = append(got, d.String())
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("got %q, not %q", got, c.want)
			}
		})
	}
}
