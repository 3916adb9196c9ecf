//go:build opencryptoki

package packaging

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const (
	openCryptoki = "/usr/lib/x86_64-linux-gnu/pkcs11/libopencryptoki.so"
	softTokenPIN = "12345678"
)

// TestOpenCryptoki runs an appliance with a PKCS#11 library other than SoftHSM: openCryptoki's soft token on Debian 13,
// by the steps of docs/operations.md. The daemon runs as the user attestd, and its worker is confined.
func TestOpenCryptoki(t *testing.T) {
	m := newSoftToken(t)
	if out, err := m.setUp(t); err == nil || !strings.Contains(out, "CKR_FUNCTION_FAILED") {
		t.Errorf("setup with Debian's permissions: %v\n%s", err, out)
	}
	if out, err := m.try(t, "test ! -e /etc/attestd/attestd.yaml"); err != nil {
		t.Errorf("a setup that made no key has left a configuration: %s", out)
	}
	m.run(t, "chgrp -R pkcs11 /var/lib/opencryptoki/swtok && chmod -R g+rwX /var/lib/opencryptoki/swtok")
	if out, err := m.setUp(t); err != nil {
		t.Fatalf("setup: %v\n%s", err, out)
	}
	m.serve(t)
	first := m.address(t)
	for _, step := range []struct {
		name string
		do   func(*testing.T)
	}{
		{"the first signature", func(*testing.T) {}},
		{"a restart", func(t *testing.T) { m.stop(t); m.serve(t) }},
		{"the worker is killed", m.killWorker},
		{"pkcsslotd is killed", m.killSlotDaemon},
		{"a key that takes the other's place", func(t *testing.T) { first = m.rotate(t) }},
		{"a restart with a wrong PIN", m.refusePIN},
	} {
		t.Run(step.name, func(t *testing.T) {
			step.do(t)
			m.attest(t, first)
		})
	}
	if log := m.run(t, "cat /tmp/serve.log"); !strings.Contains(log, "HSM library confined") &&
		!strings.Contains(log, "lacks Landlock") {
		t.Errorf("the log does not say how the library is confined:\n%s", log)
	}
}

// softToken is a Debian with attestd and openCryptoki's soft token with its PINs set. Its process 1 only sleeps.
type softToken struct{ *machine }

func newSoftToken(t *testing.T) softToken {
	t.Helper()
	need(t, "unshare", "nsenter", "pivot_root")
	m := softToken{newTree(t, "trixie", "opencryptoki,libopencryptoki0,ca-certificates")}
	host(t, "go", "build", "-o", m.root+"/usr/bin/attestd", "../appliance/cmd/attestd")
	m.enter(t)
	m.run(t,
		"groupadd attestd && useradd --system --gid attestd --groups pkcs11 --home-dir /var/lib/attestd --shell /usr/sbin/nologin attestd")
	m.write(t, "etc/opencryptoki/opencryptoki.conf",
		"version opencryptoki-3.23\nslot 3\n{\nstdll = libpkcs11_sw.so\ntokversion = 3.12\n}\n")
	m.write(t, "root/pin", softTokenPIN+"\n")
	m.run(t,
		"chmod 600 /root/pin && mkdir -p /etc/attestd /run/lock && install -d -o pkcsslotd -g pkcs11 -m 710 /run/opencryptoki && "+
			"install -d -g pkcs11 -m 770 /run/lock/opencryptoki /var/lib/opencryptoki /var/log/opencryptoki && install -d -o attestd -m 750 /run/attestd")
	m.startSlotDaemon(t)
	m.run(t, "echo attestd | pkcsconf -c 3 -I -S 87654321 && pkcsconf -c 3 -P -S 87654321 -n 76543210 && "+
		"pkcsconf -c 3 -u -S 76543210 -n 11111111 && pkcsconf -c 3 -p -U 11111111 -n "+softTokenPIN)
	return m
}

// enter makes namespaces for the tree. openCryptoki's shared memory and processes end with them.
func (m softToken) enter(t *testing.T) {
	t.Helper()
	mark := rand.Text()
	m.write(t, "etc/test-machine", mark)
	const mounts = `mount --make-rprivate / && mount --bind "$0" "$0" && cd "$0" && mount -t proc proc proc && mount --rbind /dev dev && ` +
		`mount -t tmpfs -o mode=1777 tmpfs dev/shm && mount -t tmpfs tmpfs run && mount --rbind /sys sys && mkdir -p old && pivot_root . old && ` +
		`umount --lazy /old && exec sleep infinity`
	holder := exec.CommandContext(t.Context(), "unshare", "--mount", "--ipc", "--pid", "--fork", "--kill-child",
		"sh", "-c", mounts, m.root)
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = holder.Process.Kill()
		_ = holder.Wait() // returns the kill as an error
	})
	m.await(t, "the namespaces", func() bool {
		if m.leader = findLeader(mark); m.leader == 0 {
			return false
		}
		_, err := m.try(t, "test ! -e /old/proc") // the last mount
		return err == nil
	})
}

func (m softToken) write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(m.root, name), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func (m softToken) await(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Minute); !is(); time.Sleep(200 * time.Millisecond) {
		if time.Now().After(deadline) {
			log, _ := m.try(t, "tail -n 30 /tmp/serve.log")
			t.Fatalf("waited in vain for %s\n%s", what, log)
		}
	}
}

func (m softToken) startSlotDaemon(t *testing.T) {
	t.Helper()
	m.run(t, "su -s /bin/sh pkcsslotd -c /usr/sbin/pkcsslotd >/dev/null 2>&1 </dev/null")
	m.await(t, "pkcsslotd", func() bool {
		_, err := m.try(t, "test -S /run/opencryptoki/pkcsslotd.socket")
		return err == nil
	})
}

func (m softToken) setUp(t *testing.T) (string, error) {
	t.Helper()
	return m.try(t, "attestd setup --yes --module "+openCryptoki+
		" --token attestd --pin-file /root/pin --pin-store file")
}

const serve = `su -s /bin/sh attestd -c 'echo $$ >/run/attestd/pid; exec attestd serve'`

func (m softToken) serve(t *testing.T) {
	t.Helper()
	m.run(t, "setsid --fork "+serve+" >>/tmp/serve.log 2>&1 </dev/null")
	m.await(t, "attestd", func() bool { _, err := m.try(t, "attestd status"); return err == nil })
}

func (m softToken) stop(t *testing.T) {
	t.Helper()
	m.run(t, "kill -TERM $(cat /run/attestd/pid)")
	m.await(t, "attestd's end", func() bool {
		_, err := m.try(t, "kill -0 $(cat /run/attestd/pid)")
		return err != nil
	})
}

// status returns attestd's status of the token.
func (m softToken) status(t *testing.T) (s struct {
	Worker int
	Key    struct{ Address string }
}) {
	t.Helper()
	if err := json.Unmarshal([]byte(m.run(t, "attestd hsm status --output json")), &s); err != nil {
		t.Fatal(err)
	}
	return s
}

func (m softToken) address(t *testing.T) string { t.Helper(); return m.status(t).Key.Address }

// attest runs eight clients at once and verifies each signature.
func (m softToken) attest(t *testing.T, signer string) {
	t.Helper()
	const ask = `for i in 1 2 3 4 5 6 7 8; do (a=$(od -An -N20 -tx1 /dev/urandom | tr -d ' \n'); ` +
		`attestd attest --timeout 2m --unspendable 0x$a --beneficiary 0x$a | attestd verify --signer %s - >/dev/null && echo good) & done; wait`
	if out := m.run(t, fmt.Sprintf(ask, signer)); strings.Count(out, "good") != 8 {
		t.Errorf("not every attestation verifies:\n%s", out)
	}
}

func (m softToken) killWorker(t *testing.T) {
	t.Helper()
	m.run(t, fmt.Sprintf("kill -9 %d", m.status(t).Worker))
}

// killSlotDaemon kills pkcsslotd, with which the library registers, and then the worker. The next worker starts once
// pkcsslotd is back.
func (m softToken) killSlotDaemon(t *testing.T) {
	t.Helper()
	m.run(t, "kill -9 $(cat /run/opencryptoki/pkcsslotd.pid)")
	m.killWorker(t)
	m.await(t, "a worker that cannot start", func() bool {
		_, err := m.try(t, "grep -q 'C_Initialize: CKR_FUNCTION_FAILED' /tmp/serve.log")
		return err == nil
	})
	m.run(t, "rm -f /run/opencryptoki/pkcsslotd.socket")
	m.startSlotDaemon(t)
}

// rotate makes another key, which becomes the default for unbound API keys.
func (m softToken) rotate(t *testing.T) (address string) {
	t.Helper()
	var made struct{ Address string }
	if err := json.Unmarshal([]byte(m.run(t, "attestd hsm keygen --label next --output json")), &made); err != nil {
		t.Fatal(err)
	}
	key := func(name, address string) string {
		return fmt.Sprintf(
			"    - { name: %s, state: active, address: %q, uri: \"pkcs11:token=attestd;object=%s?module-path=%s&pin-source=file:/etc/attestd/pin\" }\n",
			name, address, name, openCryptoki)
	}
	m.write(t, "etc/attestd/attestd.yaml", "hsm:\n  keys:\n"+key("next", made.Address)+key("attestor", m.address(t)))
	m.run(t, "attestd reload")
	return made.Address
}

// refusePIN restarts attestd with a wrong PIN. attestd must try the PIN once and exit with status 3. Then it restores
// the PIN.
func (m softToken) refusePIN(t *testing.T) {
	t.Helper()
	m.stop(t)
	m.run(t, "sed -i s/12345678/87654321/ /etc/attestd/pin")
	out, err := m.try(t, serve)
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 3 {
		t.Errorf("with a wrong PIN: %v\n%s", err, out)
	}
	if flags := m.run(t, "pkcsconf -t"); strings.Contains(flags, "USER_PIN_FINAL_TRY") ||
		strings.Contains(flags, "USER_PIN_LOCKED") {
		t.Errorf("the PIN was tried more than once:\n%s", flags)
	}
	m.run(t, "sed -i s/87654321/12345678/ /etc/attestd/pin")
	m.serve(t)
}
