//go:build packages

package packaging

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"
)

// TestOperations takes an operator through docs/operations.md. Each scenario creates a situation, types the manual's
// commands for it unchanged, and checks that attestd works again. Each depends on the scenarios before it.
func TestOperations(t *testing.T) {
	need(t, "dpkg-deb")
	needsBoot(t)
	o := &operator{manual: readManual(t, "../docs/operations.md"), folder: "/root", small: newDisk(t),
		spare: newDisk(t)}
	o.lifeCycle, o.another = &lifeCycle{machine: newMachine(t)}, newMachine(t)
	for _, scenario := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"an empty machine", o.emptyMachine},
		{"a changed configuration", o.changedConfiguration},
		{"a wrong PIN", o.wrongPIN},
		{"a new PIN", o.newPIN},
		{"port 443", o.port443},
		{"a wrong PIN behind port 443", o.wrongPINBehindSocket},
		{"token and port 443", o.tokenBehindSocket},
		{"another port", o.anotherPort},
		{"other limits", o.otherLimits},
		{"backups", o.backups},
		{"a lost journal", o.lostJournal},
		{"an upstream", o.upstream},
		{"a replica without a network", o.replicaByHand},
		{"a new attestor key", o.newAttestorKey},
		{"a new attestor key without a pause", o.rotation},
		{"a lost HSM", o.lostHSM},
		{"a lost key", o.lostKey},
		{"a mistake", o.mistake},
		{"a damaged journal", o.damagedJournal},
		{"a moved journal", o.movedJournal},
		{"a lost tail", o.lostTail},
		{"a full disk", o.fullDisk},
		{"a failed disk", o.failedDisk},
		{"others' hands", o.othersHands},
		{"a lost machine", o.lostMachine},
		{"an upgrade", o.newVersion},
		{"going back", o.goingBack},
		{"said in passing", o.inPassing},
		{"removing", o.removing},
	} {
		started := time.Now()
		if o.leader != 0 { // the test restarts attestd more often than systemd's limit allows
			o.try(t, "systemctl reset-failed attestd attestd.socket")
		}
		if !t.Run(scenario.name, scenario.run) {
			out, _ := o.try(t,
				"systemctl status --no-pager -l attestd attestd.socket; journalctl --no-pager -n 40 -o cat -u attestd; attestd doctor")
			t.Log(out)
			t.Fatalf("%s failed: the scenarios after it are left out", scenario.name)
		}
		t.Logf("MEASURED %s: %s", scenario.name, time.Since(started).Round(100*time.Millisecond))
	}
	o.manual.checkAllRan(t)
}

const (
	onLoopback = "http://127.0.0.1:8080"
	on443      = "https://127.0.0.1:443"
	credential = "/etc/credstore.encrypted/attestd.pin"
)

// carry copies files of this machine into a folder of the other one. The next block is typed in that folder.
func (o *operator) carry(t *testing.T, folder string, files ...string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(o.root, folder), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		host(t, "cp", file, filepath.Join(o.root, folder))
	}
	o.folder = folder
}

func (o *operator) emptyMachine(t *testing.T) {
	o.carry(t, "/root/carried", deb(dist, version(t)), filepath.Join(dist, "SHA256SUMS"))
	o.boot(t)
	o.address = address(t, o.types(t, "Install, console 1", "y"))
	o.folder = "/root"
	o.answer = tail(o.types(t, "Install, console 3"), 1)
	o.first(t)
	o.types(t, "The sandbox, console 1")
	o.pin = strings.TrimSpace(o.types(t, "The PIN, console 1"))
	o.write(t, "/root/attestation.json", o.answer)
	o.types(t, "Disasters, console 1")
}

// address returns the address in a command's output.
func address(t *testing.T, out string) string {
	t.Helper()
	a := regexp.MustCompile(`\b0x[0-9a-fA-F]{40}\b`).FindString(out)
	if a == "" {
		t.Fatalf("no address in\n%s", out)
	}
	return a
}

// first notes the first attestation, which must exist from now on.
func (o *operator) first(t *testing.T) {
	t.Helper()
	var attestation struct{ ID, SignerAddress string }
	if err := json.Unmarshal([]byte(o.answer), &attestation); err != nil || attestation.SignerAddress != o.address {
		t.Fatalf("%s is not signed by %s (%v)", o.answer, o.address, err)
	}
	o.id = attestation.ID
}

func (o *operator) changedConfiguration(t *testing.T) {
	o.types(t, "The service, console 1")
	o.works(t)
}

// refusePIN gives attestd a PIN that the token refuses, and waits until attestd has exited.
func (o *operator) refusePIN(t *testing.T, knock string) {
	t.Helper()
	o.run(t, "printf 0000 | systemd-creds encrypt --name=pin --tpm2-pcrs= - "+credential)
	o.run(t, "systemctl restart attestd & "+knock+" wait; sleep 6") // longer than RestartSec
	if got := o.show(t, "attestd", "ActiveState", "ExecMainStatus", "NRestarts"); got[0] != "failed" || got[1] != "3" ||
		got[2] != "0" {
		t.Fatalf("state, exit status, restarts: %v", got)
	}
	if got := o.show(t, "attestd.socket", "ActiveState")[0]; got != "inactive" {
		t.Errorf("attestd.socket is %s", got)
	}
}

// pinFromSafe writes the file that the manual mentions.
func (o *operator) pinFromSafe(t *testing.T) {
	t.Helper()
	o.write(t, "/root/pin", o.pin+"\n")
}

func (o *operator) pinIsSafe(t *testing.T) {
	t.Helper()
	if got := strings.TrimSpace(o.run(t, "stat -c %a "+credential)); got != "600" {
		t.Errorf("%s has mode %s", credential, got)
	}
	if out, err := o.try(t, "ls /root/pin"); err == nil {
		t.Errorf("still there: %s", out)
	}
}

func (o *operator) closed(t *testing.T, urls ...string) {
	t.Helper()
	for _, url := range urls {
		if out, err := o.try(t, "curl -sS --insecure --max-time 3 "+url+"/healthz"); err == nil {
			t.Errorf("%s is open, and answers %s", url, out)
		}
	}
}

func (o *operator) wrongPIN(t *testing.T) {
	o.refusePIN(t, "")
	o.pinFromSafe(t)
	o.types(t, "The PIN is refused, console 1")
	o.works(t)
	o.pinIsSafe(t)
	o.closed(t, "http://127.0.0.1:443", on443)
}

func (o *operator) newPIN(t *testing.T) {
	o.pin = "2027 is the year; a PIN may be long"
	o.pinFromSafe(t)
	o.types(t, "The PIN, console 2")
	o.types(t, "The PIN, console 3")
	o.types(t, "The PIN, console 4")
	o.works(t)
	o.pinIsSafe(t)
}

func (o *operator) port443(t *testing.T) {
	o.run(t, "cp -a /etc/attestd/attestd.yaml /root/without-tls.yaml")
	o.carry(t, "/root/tls", certificate(t)...)
	o.types(t, "Port 443 and TLS, console 1")
	o.configures(t, "Port 443 and TLS, yaml 1")
	o.types(t, "Port 443 and TLS, console 2")
	o.worksAt(t, on443)
	o.closed(t, onLoopback)
	o.run(t, "systemctl stop attestd")
	o.closed(t, on443)
	o.run(t, "systemctl start attestd")
	o.worksAt(t, on443)
	o.run(t, "p=$(systemctl show --value -p MainPID attestd); kill -9 $p; while [ -e /proc/$p ]; do sleep 0.01; done")
	o.run(t, "curl -sS --insecure --max-time 30 "+on443+"/healthz") // waits for the restart
	o.worksAt(t, on443)
}

// certificate makes a certificate for 127.0.0.1, and returns the files tls.crt and tls.key.
func certificate(t *testing.T) []string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "appliance"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().AddDate(1, 0, 0)}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	files := []string{filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")}
	for i, b := range []*pem.Block{{Type: "CERTIFICATE", Bytes: cert}, {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(files[i], pem.EncodeToMemory(b), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return files
}

// knocking sends requests to port 443 in the background.
const knocking = "(for i in $(seq 40); do curl -s --insecure -m 5 -o /dev/null " + on443 +
	"/healthz; sleep 0.05; done) & "

func (o *operator) wrongPINBehindSocket(t *testing.T) {
	since := o.now(t)
	o.refusePIN(t, knocking)
	if n := o.starts(t, since); n != "1" {
		t.Errorf("the PIN was tried %s times", n)
	}
	o.closed(t, on443)
	o.pinFromSafe(t)
	o.types(t, "The PIN is refused, console 1")
	o.worksAt(t, on443)
}

func (l *lifeCycle) now(t *testing.T) string {
	t.Helper()
	return strings.TrimSpace(l.run(t, "date +%s.%N"))
}

// starts counts the starts of attestd, by systemd's message id.
func (l *lifeCycle) starts(t *testing.T, since string) string {
	t.Helper()
	return strings.TrimSpace(l.run(t, "journalctl --no-pager -o cat --since=@"+since+
		" UNIT=attestd.service MESSAGE_ID=7d4958e842da4a758f6c1cdc7b36dcc5 | wc -l"))
}

// tokenBehindSocket copies the token while clients connect, which must not start attestd meanwhile. Afterwards port 443
// works again.
func (o *operator) tokenBehindSocket(t *testing.T) {
	since := o.now(t)
	o.run(t, "systemd-run --quiet --unit=knocking sh -c '"+strings.ReplaceAll(knocking, "& ", "")+"'")
	o.types(t, "Backup and restore, console 4")
	o.run(t, "systemctl stop knocking || true")
	if n := o.starts(t, since); n != "1" {
		t.Errorf("attestd was started %s times, not once after the copy", n)
	}
	if got := strings.TrimSpace(o.run(t, "stat -c %a /root/token.tar.gz")); got != "600" {
		t.Errorf("the token's copy has mode %s", got)
	}
	o.worksAt(t, on443)
	o.run(t,
		"attestd backup /var/backups/attestd && systemctl stop attestd && rm /var/lib/attestd/attestd.db /var/lib/attestd/log.key")
	o.types(t, "Backup and restore, console 5")
	o.worksAt(t, on443)
}

func (o *operator) anotherPort(t *testing.T) {
	o.types(t, "Port 443 and TLS, console 3")
	o.worksAt(t, "https://127.0.0.1:8443")
	o.closed(t, on443)
	o.types(t, "Port 443 and TLS, console 4")
	o.worksAt(t, "https://127.0.0.1:8080")
	o.closed(t, on443, "https://127.0.0.1:8443")
	o.run(t, "rm -r /etc/systemd/system/attestd.socket.d && systemctl daemon-reload")
	o.run(t, "cp -a /root/without-tls.yaml /etc/attestd/attestd.yaml && systemctl restart attestd")
	o.folder = "/root"
	o.works(t)
}

func (o *operator) otherLimits(t *testing.T) {
	const limits = "systemctl show -P MemoryHigh -P MemoryMax attestd"
	usual := o.run(t, limits)
	o.types(t, "Memory and processors, console 1")
	if got := o.run(t, limits); got != "2147483648\n3221225472\n" {
		t.Errorf("limits of the example: %q, without it %q", got, usual)
	}
	o.works(t)
	o.run(t,
		"rm /etc/systemd/system/attestd.service.d/limits.conf && systemctl daemon-reload && systemctl restart attestd")
	if got := o.run(t, limits); got != usual || strings.Contains(got, "infinity") {
		t.Errorf("limits of the unit: %q, before %q", got, usual)
	}
	o.works(t)
}

func (o *operator) backups(t *testing.T) {
	o.types(t, "Backup and restore, console 1")
	o.types(t, "Backup and restore, console 2")
	if got := o.run(t, "stat -c '%U %a' /srv/backup/*"); got != "attestd 600\n" {
		t.Errorf("elsewhere: %s", got)
	}
	o.run(t, "rm -r /etc/systemd/system/attestd-backup.service.d && systemctl daemon-reload")
	o.types(t, "Backup and restore, console 3")
	if got := o.run(t, "stat -c %a /root/etc-attestd.tar.gz"); got != "600\n" {
		t.Errorf("the configuration's copy has mode %s", got)
	}
	o.types(t, "Monitoring, console 1")
}

func (o *operator) upstream(t *testing.T) {
	o.run(t,
		"systemd-run --quiet --unit=upstream attestd dev --dir /root/upstream --listen 127.0.0.1:8090 --transfers 300")
	o.run(t, "curl -sS --retry 30 --retry-connrefused --retry-delay 1 --fail http://127.0.0.1:8090/readyz")
	o.run(t, "cp -a /etc/attestd/attestd.yaml /root/without-upstream.yaml")
	o.write(t, "/root/upstream-key", "secret\n")
	o.configures(t, "The upstream, yaml 1")
	o.types(t, "The upstream, console 1")
	o.types(t, "The upstream, console 2")
	if got := o.run(t, "stat -c %a /etc/credstore.encrypted/attestd.upstream"); got != "600\n" {
		t.Errorf("the upstream's key has mode %s", got)
	}
}

func (o *operator) replicaByHand(t *testing.T) {
	o.types(t, "Replicas without a network, console 1")
	o.run(t,
		"systemctl stop upstream; cp -a /root/without-upstream.yaml /etc/attestd/attestd.yaml && rm -r /etc/systemd/system/attestd.service.d && systemctl daemon-reload")
	o.types(t, "Replicas without a network, console 3")
	if got := o.run(t, "attestd replica status"); !regexp.MustCompile(`transfers +0\b`).MatchString(got) {
		t.Errorf("the replica is not empty:\n%s", got)
	}
	o.types(t, "Replicas without a network, console 2")
	if got := o.run(t, "attestd replica status"); !regexp.MustCompile(`transfers +300\b`).MatchString(got) {
		t.Errorf("the replica was not filled:\n%s", got)
	}
	o.works(t)
}

func (o *operator) newAttestorKey(t *testing.T) {
	o.address = address(t, o.types(t, "Changing the attestor key, console 1"))
	o.types(t, "Changing the attestor key, console 2")
	o.works(t)
	o.types(t, "Changing the attestor key, console 3")
	if got := o.run(t, "stat -c %a /root/payments-2027.key"); got != "600\n" {
		t.Errorf("the API key has mode %s", got)
	}
}

// rotation follows docs/rotation.md, and restores the configuration afterwards.
func (o *operator) rotation(t *testing.T) {
	operations := o.manual
	o.manual = readManual(t, "../docs/rotation.md")
	defer func() { o.manual = operations }()
	o.run(t, "cp -a /etc/attestd/attestd.yaml /root/before-rotation.yaml")
	o.types(t, "Steps, console 1")
	keys := o.types(t, "Steps, console 2")
	if !strings.Contains(keys, "attestor-2027  active, default  yes") ||
		!strings.Contains(keys, "attestor-2028  active           yes") {
		t.Errorf("keys:\n%s", keys)
	}
	if out := o.types(t, "Steps, console 3"); !strings.Contains(out, "The attestation is good.") {
		t.Errorf("the trial:\n%s", out)
	}
	if out := o.types(t, "Steps, console 4"); !strings.Contains(out, "is bound to attestor-2028.") {
		t.Errorf("bound:\n%s", out)
	}
	if out := o.types(t, "Steps, console 5"); !strings.Contains(out, "is retiring; 0 API keys are bound to it") {
		t.Errorf("doctor says\n%s", out)
	}
	if out := o.types(t, "Steps, console 6"); strings.Contains(out, "attestor-2027") ||
		!strings.Contains(out, "active, default") {
		t.Errorf("keys:\n%s", out)
	}
	if !strings.Contains(o.run(t, "systemctl show -P NRestarts attestd"), "0") {
		t.Error("attestd was restarted")
	}
	o.manual.checkAllRan(t)
	o.run(t,
		"for name in payments-2027 trial; do attestd key bind \"$(attestd key list | awk -v name=$name '$2 == name { print $1 }')\" --attestor '' || exit; done; cp -a /root/before-rotation.yaml /etc/attestd/attestd.yaml && systemctl reload attestd")
	o.works(t)
}

func (o *operator) newVersion(t *testing.T) {
	o.carry(t, "/root/newer", deb(next(t), nextVersion(t)))
	o.types(t, "Upgrade, console 1", "y")
	if got := o.run(t, "attestd version"); !strings.Contains(got, nextVersion(t)) {
		t.Errorf("installed is %s", got)
	}
	o.works(t)
}

func (o *operator) goingBack(t *testing.T) {
	o.types(t, "Going back, console 1")
	o.folder = "/root/carried"
	o.types(t, "Going back, console 2", "y")
	if got := o.run(t, "attestd version"); strings.Contains(got, nextVersion(t)) {
		t.Errorf("installed is %s", got)
	}
	o.works(t)
	// A newer version has migrated the journal.
	o.run(t, "systemctl stop attestd")
	o.edit(t, func(tx *bbolt.Tx) error {
		meta := tx.Bucket([]byte("meta"))
		return meta.Put([]byte("version"),
			binary.BigEndian.AppendUint64(nil, binary.BigEndian.Uint64(meta.Get([]byte("version")))+1))
	})
	if out, err := o.try(t, "systemctl start attestd"); err == nil {
		t.Errorf("it starts with a newer journal: %s", out)
	}
	o.types(t, "Going back, console 3")
	o.works(t)
}

// inPassing runs the commands that the text mentions between the blocks, except those that a block has run and those in
// elsewhere.
func (o *operator) inPassing(t *testing.T) {
	for _, line := range o.manual.unsaid() {
		if _, known := elsewhere[line]; !known {
			if out, err := o.try(t, line); err != nil {
				t.Errorf("the text speaks of `%s`: %v\n%s", line, err, out)
			}
			o.manual.typed += line + "\n"
		}
	}
}

func (o *operator) removing(t *testing.T) {
	const kept = "ls -d " + data + " /var/backups/attestd " + credential
	o.folder = "/root"
	o.types(t, "Removing, console 1", "y")
	o.run(t, kept+" /etc/attestd/attestd.yaml")
	o.types(t, "Removing, console 2", "y")
	o.run(t, kept)
	o.types(t, "Removing, console 3")
	if out, err := o.try(t, "ls -d /var/lib/attestd /var/backups/attestd /etc/attestd "+credential+
		" 2>/dev/null"); err == nil || out != "" {
		t.Errorf("still there: %s", out)
	}
}
