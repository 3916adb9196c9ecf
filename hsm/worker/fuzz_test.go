package worker

import (
	"bytes"
	"io"
	"testing"
)

// packet is a socket from which one packet is read, and which records the sent bytes.
type packet struct {
	in, out bytes.Buffer
}

func (p *packet) Read(b []byte) (int, error)  { return p.in.Read(b) }
func (p *packet) Write(b []byte) (int, error) { return p.out.Write(b) }
func (p *packet) Close() error                { return nil }

// FuzzReceive checks frames from a worker with corrupted memory. A received frame is equal to its own encoding, and an
// error in it can be decoded and printed.
func FuzzReceive(f *testing.F) {
	for _, one := range []frame{
		{kind: kindAnswered, id: 1, sessions: 8, payload: make([]byte, 64)},
		{kind: kindFailed, id: 2, repairs: 3, payload: encodeError(io.EOF)},
		{kind: kindLost}, {kind: kindLog, payload: []byte(`{"msg":"x"}`)},
	} {
		f.Add(sent(f, one))
	}
	f.Add([]byte{headMark})
	f.Fuzz(func(t *testing.T, in []byte) {
		var p packet
		p.in.Write(in)
		got, err := wire{&p}.receive(make([]byte, headerSize+mostPayload))
		if err != nil {
			return
		}
		if again := sent(t, got); !bytes.Equal(again, in[:min(len(in), headerSize+mostPayload)]) {
			t.Fatalf("%x was read as %+v", in, got)
		}
		if err := decodeError(got.payload); err != nil && len(encodeError(err)) < 10 {
			t.Fatalf("%x: %v", got.payload, err)
		}
	})
}

// sent returns the encoding of a frame.
func sent(t testing.TB, one frame) []byte {
	t.Helper()
	var p packet
	if err := (wire{&p}).send(one); err != nil {
		t.Fatal(err)
	}
	return p.out.Bytes()
}
