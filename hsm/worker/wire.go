package worker

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/miekg/pkcs11"
	"golang.org/x/sys/unix"

	"github.com/attestd/attestd/hsm"
)

// kind is the type of a frame.
type kind byte

// Requests are answered with kindAnswered or kindFailed, under the same id.
const (
	kindOpen   kind = iota + 1 // payload: settings as JSON; the answer is an opened as JSON
	kindSign                   // payload: 32 bytes; the answer is 64 bytes, r and s
	kindProbe                  // ask the token for the key
	kindFind                   // find the token and the key again
	kindStatus                 // the answer is an hsm.Status as JSON
	kindClose                  // close the sessions, finalise the module and end
	kindPIN                    // in the PIN pipe: id is the length of the PIN that follows; 0: an error

	kindAnswered
	kindFailed   // payload: an error; see encodeError
	kindWantPIN  // from the worker: it is about to log in
	kindLoggedIn // from the worker: the result of C_Login, an empty payload or an error
	kindLost     // from the worker: an error that only reloading the module repairs
	kindLog      // from the worker: a line of its log as JSON

	kindMessage // payload: a message; the answer is an Ed25519 signature of 64 bytes
)

// frame is a message between the daemon and a worker, over a socket that preserves message boundaries (SOCK_SEQPACKET).
// The header has 20 bytes: a mark, the kind, the sessions (16 bits), and with 32 bits each the id, the repairs, the
// length of the payload and another mark. Numbers are little-endian.
type frame struct {
	kind     kind
	sessions uint16 // from the worker: number of sessions
	id       uint32 // of the request
	repairs  uint32 // from the worker: repairs since its start
	payload  []byte
}

const (
	headerSize = 20
	headMark   = 0xa7
	tailMark   = 0x61747464 // "attd"
	// mostPayload bounds a payload; a status or an error that lists keys is a few KiB.
	mostPayload = 64 << 10
)

// errGarbage is wrapped if the input is not a valid frame.
var errGarbage = errors.New("not a frame of the worker protocol")

// wire sends and receives frames. It is safe for concurrent use.
type wire struct{ socket io.ReadWriteCloser }

// descriptor is the worker's end of the socket. Its calls block, and any number of goroutines may receive concurrently;
// the kernel wakes one of them per frame. An os.File would let only one read at a time, at the cost of thread switches.
type descriptor int

func (d descriptor) Read(b []byte) (int, error) {
	for {
		n, err := unix.Read(int(d), b)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return 0, err
		case n == 0:
			return 0, io.EOF
		default:
			return n, nil
		}
	}
}

func (d descriptor) Write(b []byte) (int, error) {
	for {
		if n, err := unix.Write(int(d), b); !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

func (d descriptor) Close() error { return unix.Close(int(d)) }

func (w wire) send(f frame) error {
	var few [128]byte
	b := append(few[:0], headMark, byte(f.kind))
	b = binary.LittleEndian.AppendUint16(b, f.sessions)
	for _, word := range []uint32{f.id, f.repairs, uint32(len(f.payload)), tailMark} {
		b = binary.LittleEndian.AppendUint32(b, word)
	}
	_, err := w.socket.Write(append(b, f.payload...))
	return err
}

// receive reads the next frame into the buffer; the payload is a part of the buffer. It returns io.EOF if the other
// side is gone.
func (w wire) receive(buffer []byte) (frame, error) {
	n, err := w.socket.Read(buffer)
	if err != nil {
		return frame{}, err
	}
	return parse(buffer[:n])
}

// receiveAll is receive for a stream without message boundaries. It does not read past the frame's end.
func receiveAll(from io.Reader) (frame, error) {
	b := make([]byte, headerSize, 256)
	if _, err := io.ReadFull(from, b); err != nil {
		return frame{}, err
	}
	length := binary.LittleEndian.Uint32(b[12:])
	if length > mostPayload {
		return frame{}, fmt.Errorf("%w: a payload of %d bytes", errGarbage, length)
	}
	b = append(b, make([]byte, length)...)
	if _, err := io.ReadFull(from, b[headerSize:]); err != nil {
		return frame{}, err
	}
	return parse(b)
}

// parse parses a frame. The payload is a part of b.
func parse(b []byte) (frame, error) {
	n := len(b)
	if n < headerSize || b[0] != headMark {
		return frame{}, fmt.Errorf("%w: the frame begins with %x", errGarbage, b[:min(n, headerSize)])
	}
	word := func(at int) uint32 { return binary.LittleEndian.Uint32(b[at:]) }
	f := frame{kind: kind(b[1]), sessions: binary.LittleEndian.Uint16(b[2:]), id: word(4), repairs: word(8),
		payload: b[headerSize:]}
	if word(16) != tailMark || f.kind < kindOpen || f.kind > kindMessage || int(word(12)) != len(f.payload) {
		return frame{}, fmt.Errorf("%w: the frame begins with %x", errGarbage, b[:headerSize])
	}
	return f, nil
}

// sentinels are the errors that survive the encoding, so that errors.Is works on the other side.
var sentinels = []error{
	hsm.ErrPIN, hsm.ErrNotFound, hsm.ErrNoToken, hsm.ErrOtherKeys, hsm.ErrAmbiguous, hsm.ErrWrongKey, hsm.ErrLost,
	hsm.ErrClosed,
}

// remoteError is an error from the worker: its text, which names the call and the code, and the errors that it wraps.
type remoteError struct {
	text  string
	wraps []error
}

func (e *remoteError) Error() string   { return e.text }
func (e *remoteError) Unwrap() []error { return e.wraps }

// encodeError encodes the sentinels that the error wraps as bits, its CK_RV, and its text.
func encodeError(err error) []byte {
	var bits uint16
	for i, s := range sentinels {
		if errors.Is(err, s) {
			bits |= 1 << i
		}
	}
	rv, _ := errors.AsType[pkcs11.Error](err)
	b := binary.LittleEndian.AppendUint16(nil, bits)
	b = binary.LittleEndian.AppendUint64(b, uint64(rv))
	text := err.Error()
	return append(b, text[:min(len(text), mostPayload/2)]...)
}

func decodeError(b []byte) error {
	if len(b) < 10 {
		return errGarbage
	}
	bits, rv := binary.LittleEndian.Uint16(b), binary.LittleEndian.Uint64(b[2:])
	e := &remoteError{text: string(b[10:])}
	for i, s := range sentinels {
		if bits&(1<<i) != 0 {
			e.wraps = append(e.wraps, s)
		}
	}
	if rv != 0 {
		e.wraps = append(e.wraps, pkcs11.Error(rv))
	}
	return e
}
