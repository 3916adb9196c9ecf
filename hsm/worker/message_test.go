package worker_test

import (
	"crypto/ed25519"
	"encoding/hex"
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/attestd/attestd/hsm"
	"github.com/attestd/attestd/hsm/hsmtest"
	"github.com/attestd/attestd/hsm/worker"
)

// openLogKey makes an Ed25519 key in a token and opens it.
func openLogKey(t *testing.T) (*worker.Signer, ed25519.PublicKey, *hsmtest.Faults) {
	t.Helper()
	token, faults := hsmtest.FaultModule(t)
	made, err := hsm.Keygen(t.Context(), hsm.Options{URI: token.URI, Algorithm: hsm.Ed25519}, "log")
	if err != nil {
		t.Fatal(err)
	}
	public, err := hex.DecodeString(strings.TrimPrefix(made.PublicKey, "0x"))
	if err != nil || len(public) != ed25519.PublicKeySize || made.Address != (hsm.KeyInfo{}).Address {
		t.Fatalf("%+v, %v", made, err)
	}
	token.URI.Object = "log"
	s, _ := open(t, worker.Options{HSM: hsm.Options{URI: token.URI, Sessions: 1, Algorithm: hsm.Ed25519}})
	return s, public, faults
}

func TestAnEd25519KeySignsMessages(t *testing.T) {
	t.Parallel()
	s, public, _ := openLogKey(t)
	if string(s.PublicKey()) != string(public) {
		t.Fatalf("PublicKey: %x, want %x", s.PublicKey(), public)
	}
	var before []byte
	for _, message := range []string{"", "a checkpoint\n", strings.Repeat("long ", 5000)} {
		signature, err := s.SignMessage(t.Context(), []byte(message))
		if err != nil || !ed25519.Verify(public, []byte(message), signature) {
			t.Fatalf("%d bytes: %x, %v", len(message), signature, err)
		}
		before = signature
	}
	again, err := s.SignMessage(t.Context(), []byte(strings.Repeat("long ", 5000)))
	if err != nil || string(again) != string(before) {
		t.Errorf("the signature is not deterministic (RFC 8032): %x, %x, %v", before, again, err)
	}
	if _, err := s.SignMessage(t.Context(), make([]byte, 33<<10)); err == nil {
		t.Error("a message of 33 KiB was signed")
	}
	status, err := s.Status(t.Context())
	if err != nil || status.Key.Curve != "ed25519" || status.Key.Address != nil {
		t.Errorf("%+v, %v", status.Key, err)
	}
	if err := s.Ready(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestAWorkerOfALogKeyIsReplaced(t *testing.T) {
	t.Parallel()
	s, public, _ := openLogKey(t)
	if err := syscall.Kill(workerOf(t, s), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	signature, err := s.SignMessage(t.Context(), []byte("after"))
	if err != nil || !ed25519.Verify(public, []byte("after"), signature) {
		t.Fatalf("%x, %v", signature, err)
	}
}

func TestAWrongSignatureOfALogKeyIsWithheld(t *testing.T) {
	t.Parallel()
	s, _, faults := openLogKey(t)
	faults.Set("C_Sign", hsmtest.Fault{Answer: hsmtest.BitFlipped})
	signature, err := s.SignMessage(t.Context(), []byte("a checkpoint"))
	if !errors.Is(err, hsm.ErrWrongKey) || signature != nil {
		t.Errorf("got %x, %v, want ErrWrongKey", signature, err)
	}
}
