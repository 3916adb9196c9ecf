//go:build packages

package packaging

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"
)

func (o *operator) lostJournal(t *testing.T) {
	o.run(t, "systemctl stop attestd && rm /var/lib/attestd/attestd.db /var/lib/attestd/log.key")
	o.types(t, "Backup and restore, console 5")
	o.works(t)
}

func (o *operator) lostHSM(t *testing.T) {
	o.types(t, "Backup and restore, console 4")
	o.run(t, "rm -r /var/lib/attestd/softhsm")
	if got := address(t, o.types(t, "The HSM is lost, its backup is not, console 1")); got != o.address {
		t.Errorf("another key: %s", got)
	}
	o.works(t)
}

func (o *operator) lostKey(t *testing.T) {
	o.run(t, "rm -r /var/lib/attestd/softhsm/*")
	o.address = address(t, o.types(t, "The attestor key is lost, console 1"))
	o.works(t)
	o.types(t, "Backup and restore, console 4")
}

func (o *operator) mistake(t *testing.T) {
	o.run(t,
		"cp -a /etc/attestd/attestd.yaml /root/good.yaml && echo 'server: { lisen: 127.0.0.1:80 }' >>/etc/attestd/attestd.yaml; systemctl restart attestd || true")
	out, err := o.tries(t, "attestd does not start, console 1")
	if err == nil || !strings.Contains(out, "did you mean server.listen?") {
		t.Errorf("it does not tell of the mistake (%v)", err)
	}
	o.run(t, "cp -a /root/good.yaml /etc/attestd/attestd.yaml && systemctl restart attestd")
	o.works(t)

	// An older version may have allowed both. They are refused with the command that fixes them.
	o.run(t, "chmod 644 /var/lib/attestd/log.key; systemctl restart attestd || true")
	out, err = o.tries(t, "attestd does not start, console 1")
	const chmod = "chmod 0600 /var/lib/attestd/log.key"
	if err == nil || !strings.Contains(out, chmod) {
		t.Errorf("it does not tell of the mode (%v)", err)
	}
	o.run(t, chmod+" && ATTESTD_SERVER_LISTEN=0.0.0.0:8080 attestd config check 2>/root/refusal && exit 1; "+
		"grep 'set server.allow_plain_http: true' /root/refusal && ATTESTD_SERVER_ALLOW_PLAIN_HTTP=true ATTESTD_SERVER_LISTEN=0.0.0.0:8080 attestd config check")
	o.run(t, "systemctl restart attestd")
	o.works(t)
	// Other processes of the same user cannot read its memory.
	o.run(t,
		"! runuser -u attestd -- cat /proc/$(systemctl show -P MainPID attestd)/maps && grep 'Max core file size *0 ' /proc/$(systemctl show -P MainPID attestd)/limits")
}

// damagedJournal changes a record in the file, as a disk or a person could.
func (o *operator) damagedJournal(t *testing.T) {
	o.run(t, "attestd backup /var/backups/attestd && systemctl stop attestd")
	o.edit(t, func(tx *bbolt.Tx) error {
		records, index := tx.Bucket([]byte("records")), make([]byte, 8)
		leaf := append([]byte{}, records.Get(index)...)
		if digit := &leaf[len(leaf)-3]; *digit == '0' { // in the salt, so that the leaf can still be decoded
			*digit = '1'
		} else {
			*digit = '0'
		}
		return records.Put(index, leaf)
	})
	o.run(t, "systemctl start attestd")
	if out, err := o.tries(t, "The journal is damaged, console 1"); err == nil {
		t.Errorf("no damage is found:\n%s", out)
	}
	o.types(t, "The journal is damaged, console 2")
	o.works(t)
}

// logKey returns the verifier key of the current log.
func (o *operator) logKey(t *testing.T) string {
	t.Helper()
	return o.run(t, "curl -sS --fail "+onLoopback+"/functions/v1/attestor | sed 's/.*\"verifierKey\":\"//; s/\".*//'")
}

func (o *operator) movedJournal(t *testing.T) {
	before := o.logKey(t)
	o.types(t, "Backup and restore, console 6")
	o.run(t, "cd /var/lib/attestd && rm attestd.db log.key high-water-mark")
	o.types(t, "Backup and restore, console 7")
	o.works(t)
	if after := o.logKey(t); after != before {
		t.Errorf("it was the log %s, and is %s", before, after)
	}
	o.run(t, "attestd log verify --since-checkpoint /root/newest.checkpoint")
}

// lostTail restores the journal from an older snapshot.
func (o *operator) lostTail(t *testing.T) {
	before := o.logKey(t)
	o.run(t, "systemctl stop attestd && cp -a /var/lib/attestd/attestd.db /root/snapshot.db && systemctl start attestd")
	o.works(t)
	o.run(t,
		"attestd log checkpoint >/root/published.checkpoint && systemctl stop attestd && cp -a /root/snapshot.db /var/lib/attestd/attestd.db && systemctl start attestd")
	if got, err := o.try(t, "curl -sS "+onLoopback+"/readyz"); err != nil ||
		!strings.Contains(got, `"journal":"journal_lost"`) {
		t.Errorf("readyz: %s (%v)", got, err)
	}
	out, err := o.tries(t, "The journal lost what was published, console 1")
	if err == nil || !strings.Contains(out, "journal: LOST") || !strings.Contains(out, "attestd log accept-loss") {
		t.Errorf("it is not told: %s (%v)", out, err)
	}
	accepted := o.types(t, "The journal lost what was published, console 2")
	if after := o.logKey(t); after == before || !strings.Contains(accepted, strings.TrimSpace(after)) ||
		!strings.Contains(accepted, "log_continued") {
		t.Errorf("it was the log %s, and is %s: %s", before, after, accepted)
	}
	o.works(t)
	if out, err := o.try(t, "attestd log verify --since-checkpoint /root/published.checkpoint"); err == nil ||
		!strings.Contains(out, "but this log continues only") {
		t.Errorf("what was lost is not told: %s (%v)", out, err)
	}
	o.run(t, "attestd log verify && rm -r /root/before-accept-loss /root/snapshot.db && systemctl start attestd-backup")
}

// edit changes the database in the machine. attestd must be stopped.
func (m *machine) edit(t *testing.T, change func(*bbolt.Tx) error) {
	t.Helper()
	db, err := bbolt.Open(filepath.Join(m.root, "var/lib/attestd/attestd.db"), 0o600,
		&bbolt.Options{Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Update(change); err != nil {
		t.Error(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

// status returns the HTTP status of a request for an attestation.
func (o *operator) status(t *testing.T) string {
	t.Helper()
	out, _ := o.try(t,
		`curl -sS --max-time 30 -o /dev/null -w '%{http_code}' -H 'content-type: application/json' -H "x-api-key: $(cat /etc/attestd/api-key)" -d '`+
			`{"unspendableAddress":"`+unspendable+`","beneficiary":"`+beneficiary+`"}' `+onLoopback+
			"/functions/v1/attest")
	return out
}

// fullDisk moves attestd's data to a small disk, so that filling it affects no other test.
func (o *operator) fullDisk(t *testing.T) {
	if o.small.missing != "" {
		o.manual.leaveOut(t, "The disk is full, console 1", o.small.missing)
	}
	const folder, filler = "/var/lib/attestd", "/var/lib/attestd/filler"
	o.run(t, "systemctl stop attestd && mv "+folder+" /root/moved && mkdir "+folder)
	o.small.mount(t, o.machine, folder)
	o.run(t, "cp -a /root/moved/. "+folder+" && systemctl start attestd")
	o.works(t)
	o.run(t, "dd if=/dev/zero of="+filler+" bs=1M status=none || true")
	if got := o.status(t); got != "503" {
		t.Errorf("on a full disk: %s", got)
	}
	if out, err := o.try(t, "attestd doctor"); err == nil || !strings.Contains(out, "journal.min_free") {
		t.Errorf("doctor, on a full disk: %v\n%s", err, out)
	}
	before := o.show(t, "attestd", "MainPID")[0]
	o.run(t, "rm "+filler)
	o.types(t, "The disk is full, console 1")
	o.works(t)
	if after := o.show(t, "attestd", "MainPID")[0]; after != before {
		t.Errorf("process %s became %s: it did not go on by itself", before, after)
	}
}

// failedDisk makes the disk of fullDisk fail permanently, and replaces it with an empty one.
func (o *operator) failedDisk(t *testing.T) {
	if missing := o.small.missing + o.spare.missing; missing != "" {
		o.manual.leaveOut(t, "The disk failed, console 1", missing)
	}
	o.run(t, "attestd backup /var/backups/attestd")
	// A checkpoint is served only after the high-water mark has its records. So the next record's write, which ends the
	// process, is the first that fails.
	o.run(t, "attestd log checkpoint >/dev/null")
	since := o.now(t)
	o.small.fail(t)
	if got := o.status(t); got == "200" {
		t.Error("it attests on a disk that has failed")
	}
	ended := "journalctl --no-pager -o cat --since=@" + since + " -u attestd"
	o.run(t, "for i in $(seq 600); do "+ended+" | grep -q 'Main process exited' && exit 0; sleep 0.1; done; exit 1")
	t.Log(o.run(t, ended))
	o.run(t, "systemctl stop attestd; umount --lazy /var/lib/attestd")
	o.spare.mount(t, o.machine, "/var/lib/attestd")
	o.types(t, "The disk failed, console 1")
	o.works(t)
}

func (o *operator) othersHands(t *testing.T) {
	// an earlier checkpoint covers records that the scenarios above have lost
	o.run(t, "curl -fsS "+onLoopback+"/log/checkpoint >/root/attestd.checkpoint")
	o.types(t, "Key or machine are in others' hands, console 1")
	if got := o.status(t); got != "403" {
		t.Errorf("with a key that was revoked: %s", got)
	}
	o.run(t, "attestd key create --name after >/etc/attestd/api-key")
	o.answer = o.post(t, onLoopback+"/functions/v1/attest")
	o.first(t) // an API key can read only its own attestations
}

// lostMachine loses everything except the files that the manual says to keep elsewhere.
func (o *operator) lostMachine(t *testing.T) {
	o.folder = "/root"
	o.types(t, "Backup and restore, console 3")
	o.types(t, "Backup and restore, console 4")
	o.run(t, "systemctl start attestd-backup")
	lost := o.machine
	safe := t.TempDir()
	host(t, "sh", "-c",
		"cp -a $0/root/etc-attestd.tar.gz $0/root/token.tar.gz $(ls -t $0/var/backups/attestd/*.tar.zst | head -n 1) $1", lost.root, safe)
	if err := os.WriteFile(filepath.Join(safe, "pin"), []byte(o.pin+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	lost.off(t)

	o.machine = o.another
	files, err := filepath.Glob(safe + "/*")
	if err != nil {
		t.Fatal(err)
	}
	o.carry(t, "/root/carried", append(files, deb(dist, version(t)))...)
	o.boot(t)
	if got := o.types(t, "The machine is lost, console 1", "y"); !strings.Contains(got, o.address) {
		t.Errorf("the key is not %s", o.address)
	}
	o.works(t)
	o.pinIsSafe(t)
}
