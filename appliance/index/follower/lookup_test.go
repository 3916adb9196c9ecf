package follower_test

import (
	"strings"
	"testing"

	"github.com/attestd/attestd/api/graphql"
	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/follower"
)

// The fields that a packet was sent with are not requested again until the packet has ended.
func TestOfAPacketUnderWayOnlyWhatMovesOnIsAskedFor(t *testing.T) {
	s := newServer(t, 50, graphql.Options{})
	r := reader(t, s)
	s.queries = nil
	for _, row := range s.rows(t, index.PacketType) {
		var is index.Packet
		if err := row.Decode(&is); err != nil {
			t.Fatal(err)
		}
		is.SourceClientID, is.Decoded, is.DecodedFlattened = new(int32(99)), nil, nil // differ from the upstream
		was := is
		was.Status, was.RecvHeight, was.AckMaker, was.Success, was.Acknowledgement, was.Traces = new(
			index.TracePacketSend), nil, nil, nil, nil, is.Traces[:1]
		answers, _, _, err := r.Fetch(t.Context(),
			follower.Onward(follower.LookUp(index.PacketType, row.Key()), rowOf(t, was)))
		if err != nil {
			t.Fatal(err)
		}
		same(t, answers[0].Rows, []index.Row{rowOf(t, is)})
	}
	for _, fixed := range []string{" data", "source_client_id", " timeout_timestamp", "packet_send_", "decoded"} {
		if strings.Contains(s.queries[0], fixed) {
			t.Errorf("%s is asked for: %s", fixed, s.queries[0])
		}
	}
	answers, _, _, err := r.Fetch(t.Context(),
		follower.Onward(follower.LookUp(index.PacketType, "0xf0"), s.rows(t, index.PacketType)[0]))
	if err != nil || len(answers[0].Rows) != 0 {
		t.Errorf("a packet that the upstream does not have: %+v, %v", answers, err)
	}
}

// An answer is rejected unless it has the hash of the requested packet.
func TestAnAnswerThatDoesNotNameItsPacketIsNotTaken(t *testing.T) {
	s := newServer(t, 2, graphql.Options{})
	here := s.rows(t, index.PacketType)[0]
	for _, object := range []string{`null`, `{}`, `{"packet_recv_height":null}`, `{"packet_hash":null}`,
		`{"packet_hash":"0x05"}`, `[]`} {
		answers, _, _, err := reader(t, canned{s, `{"p0":[` + object + `],"n":[]}`}).Fetch(t.Context(),
			follower.Onward(follower.LookUp(index.PacketType, here.Key()), here))
		if err != nil || len(answers[0].Rows) > 0 || len(answers[0].Bad) != 1 {
			t.Errorf("%s: %+v, %v", object, answers, err)
		}
	}
}

func rowOf(t *testing.T, value any) index.Row {
	t.Helper()
	row, err := index.NewRow(value)
	if err != nil {
		t.Fatal(err)
	}
	return row
}
