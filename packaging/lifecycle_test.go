//go:build packages

//nolint:misspell // systemd-analyze is spelled so
package packaging

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

const (
	unspendable = "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed"
	beneficiary = "0xfB6916095ca1df60bB79Ce92cE3Ea74c37c5d359"
)

// TestDebLifeCycle takes one machine through the life of an appliance. Each step depends on the steps before it.
func TestDebLifeCycle(t *testing.T) {
	need(t, "dpkg-deb")
	needsBoot(t)
	l := &lifeCycle{machine: newMachine(t)}
	l.first, l.second = l.put(t, deb(dist, version(t))), l.put(t, deb(next(t), nextVersion(t)))
	for _, step := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"install without a running system", l.installUnbooted},
		{"boot", l.bootFirst},
		{"before setup", l.beforeSetup},
		{"setup", l.setup},
		{"enable", l.enable},
		{"attest", l.attest},
		{"systemd's verdict", l.verdict},
		{"kill", l.kill},
		{"reload", l.reload},
		{"backup", l.backup},
		{"restore", l.restore},
		{"log key in the HSM", l.logKey},
		{"socket", l.socket},
		{"wrong PIN", l.wrongPIN},
		{"upgrade", l.upgrade},
		{"downgrade is refused", l.downgrade},
		{"reboot", l.rebooted},
		{"remove and install again", l.remove},
		{"purge and set up again", l.purge},
		{"purge with everything", l.purgeAll},
	} {
		if !t.Run(step.name, step.run) {
			if l.leader != 0 {
				out, _ := l.try(t,
					"systemctl status --no-pager -l attestd attestd.socket; journalctl --no-pager -n 60 -o cat; attestd doctor")
				t.Log(out)
			}
			t.Fatalf("%s failed: the steps after it are left out", step.name)
		}
	}
}

type lifeCycle struct {
	*machine
	first, second string // paths of the packages in the machine
	id, answer    string // the first attestation
	address       string // of the signer
}

// quietly runs a line that must have no output.
func (l *lifeCycle) quietly(t *testing.T, line string) {
	t.Helper()
	if out := l.run(t, line); out != "" {
		t.Errorf("%s prints:\n%s", line, out)
	}
}

// install returns a dpkg command line that removes dpkg's own messages.
func install(file string) string {
	return "dpkg --install " + file +
		" | grep -v -E '^((Selecting|Preparing|Unpacking|Setting up) |\\(Reading|Processing triggers)' || true"
}

func (l *lifeCycle) installUnbooted(t *testing.T) {
	l.quietly(t, install(l.first))
	l.quietly(t, install(l.first)) // scripts must be repeatable
	for path, want := range map[string]string{
		"/etc/attestd":         "root:attestd 750",
		"/var/lib/attestd":     "attestd:attestd 700",
		"/var/backups/attestd": "attestd:attestd 700",
		"/usr/bin/attestd":     "root:root 755",
	} {
		if got := strings.TrimSpace(l.run(t, "stat -c '%U:%G %a' "+path)); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
	l.run(t, "dpkg --verify attestd")
}

func (l *lifeCycle) bootFirst(t *testing.T) {
	l.boot(t)
	for _, unit := range []string{"attestd.service", "attestd.socket", "attestd-backup.timer"} {
		if got, _ := l.try(t, "systemctl is-enabled "+unit); strings.TrimSpace(got) != "disabled" {
			t.Errorf("%s is %s after the installation", unit, got)
		}
	}
}

// beforeSetup checks that commands that need an HSM name the remedy.
func (l *lifeCycle) beforeSetup(t *testing.T) {
	for _, command := range []string{"attestd config check", "attestd doctor", "attestd serve", "attestd hsm status"} {
		if out, err := l.try(t, command); err == nil || !strings.Contains(out, "create it with: attestd setup") {
			t.Errorf("%s: %v\n%s", command, err, out)
		}
	}
	l.run(t, "systemctl start attestd || journalctl -u attestd | grep 'no configuration yet'; systemctl stop attestd")
}

func (l *lifeCycle) setup(t *testing.T) {
	out := l.run(t, "attestd setup --yes")
	t.Log("\n" + out)
	l.address = regexp.MustCompile(`0x[0-9a-fA-F]{40}`).FindString(out)
	if l.address == "" {
		t.Fatal("setup names no address")
	}
	if got := strings.TrimSpace(l.run(t, "stat -c '%U:%G %a' /etc/attestd/attestd.yaml")); got != "root:attestd 640" {
		t.Errorf("the configuration is %s", got)
	}
	again := l.run(t, "attestd setup --yes")
	if !strings.Contains(again, l.address) || strings.Contains(again, "made ") {
		t.Errorf("a second setup is not without effect:\n%s", again)
	}
}

func (l *lifeCycle) enable(t *testing.T) {
	l.run(t, "systemctl enable --quiet --now attestd attestd-backup.timer")
	times := l.show(t, "attestd", "InactiveExitTimestampMonotonic", "ActiveEnterTimestampMonotonic", "MemoryCurrent")
	from, _ := strconv.Atoi(times[0])
	to, _ := strconv.Atoi(times[1])
	t.Logf("MEASURED from start to ready: %s", (time.Duration(to-from) * time.Microsecond).Round(time.Millisecond))
	if out, err := l.try(t, "attestd doctor"); err != nil {
		t.Errorf("doctor: %v\n%s", err, out)
	}
}

// show returns properties of a unit.
func (l *lifeCycle) show(t *testing.T, unit string, properties ...string) []string {
	t.Helper()
	values := make([]string, len(properties))
	for i, p := range properties {
		values[i] = strings.TrimSpace(l.run(t, "systemctl show --value --property="+p+" "+unit))
	}
	return values
}

// post requests an attestation over loopback.
func (l *lifeCycle) post(t *testing.T, flags string) string {
	t.Helper()
	body := fmt.Sprintf(`{"unspendableAddress":"%s","beneficiary":"%s"}`, unspendable, beneficiary)
	return l.run(t, `curl -sS --fail-with-body --max-time 30 `+flags+
		` -H 'content-type: application/json' -H "x-api-key: $(cat /etc/attestd/api-key)" -d '`+body+`'`)
}

func (l *lifeCycle) attest(t *testing.T) {
	l.answer = l.post(t, "http://127.0.0.1:8080/functions/v1/attest")
	var attestation struct{ ID, SignerAddress string }
	if err := json.Unmarshal([]byte(l.answer), &attestation); err != nil || attestation.SignerAddress != l.address {
		t.Fatalf("%s: %v", l.answer, err)
	}
	l.id = attestation.ID
	l.run(t, "printf '%s' '"+l.answer+"' | attestd verify -")
}

// works checks that attestd attests and still has its first attestation and key.
func (l *lifeCycle) works(t *testing.T) {
	t.Helper()
	l.worksAt(t, "http://127.0.0.1:8080")
}

func (l *lifeCycle) worksAt(t *testing.T, url string) {
	t.Helper()
	got := l.post(t, "--insecure --retry 30 --retry-all-errors --retry-delay 1 "+url+"/functions/v1/attest")
	if !strings.Contains(got, l.address) {
		t.Errorf("another key signed: %s", got)
	}
	first := l.run(t, `curl -sS --insecure --fail-with-body -H "x-api-key: $(cat /etc/attestd/api-key)" `+url+
		`/functions/v1/attest/`+l.id)
	if !strings.Contains(first, l.id) {
		t.Errorf("the first attestation is not there: %s", first)
	}
	l.run(t, "attestd log verify")
}

func (l *lifeCycle) verdict(t *testing.T) {
	if out := l.run(t,
		"cd /usr/lib/systemd/system && systemd-analyze verify --man=no attestd.service attestd.socket attestd-backup.service attestd-backup.timer"); out != "" {
		t.Error(out)
	}
	out := l.run(t, "systemd-analyze security --no-pager --threshold=15 attestd.service")
	t.Log("MEASURED", tail(out, 1))
	// The same, as seen by the service's process.
	status := l.run(t, "cat /proc/$(systemctl show --value -p MainPID attestd)/status")
	for _, want := range []string{"CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1",
		"Seccomp:\t2"} {
		if !strings.Contains(status, want) {
			t.Errorf("not %q in\n%s", want, status)
		}
	}
	if got := l.run(t,
		"grep -E 'core file size' /proc/$(systemctl show --value -p MainPID attestd)/limits"); !regexp.MustCompile(
		`core file size +0 +0`).MatchString(got) {
		t.Errorf("cores may be dumped: %s", got)
	}
}

func (l *lifeCycle) kill(t *testing.T) {
	before := l.show(t, "attestd", "MainPID")[0]
	started := time.Now()
	// a dying process may still accept a connection
	l.run(t, "kill -9 "+before+" && tail -s 0.01 --pid="+before+" -f /dev/null")
	l.works(t)
	t.Logf("MEASURED from kill -9 to the next attestation: %s", time.Since(started).Round(100*time.Millisecond))
	if got := l.show(t, "attestd", "NRestarts", "MainPID"); got[0] != "1" || got[1] == before {
		t.Errorf("restarts and process: %v", got)
	}
}

func (l *lifeCycle) reload(t *testing.T) {
	before := l.show(t, "attestd", "MainPID")[0]
	l.run(t, "systemctl reload attestd")
	l.run(t, "cp -a /etc/attestd/attestd.yaml /root/kept.yaml && echo 'nonsense: 1' >>/etc/attestd/attestd.yaml")
	if out, err := l.try(t, "systemctl reload attestd"); err == nil {
		t.Errorf("a wrong configuration was taken: %s", out)
	}
	l.run(t, "cp -a /root/kept.yaml /etc/attestd/attestd.yaml && systemctl reload attestd")
	if after := l.show(t, "attestd", "MainPID")[0]; after != before {
		t.Errorf("process %s became %s", before, after)
	}
	l.works(t)
}

func (l *lifeCycle) backup(t *testing.T) {
	if got := l.run(t, "systemctl list-timers --no-pager attestd-backup.timer"); !strings.Contains(got,
		"attestd-backup.service") {
		t.Errorf("the timer: %s", got)
	}
	l.run(t, "systemctl stop attestd-backup.timer && rm -f /var/backups/attestd/*") // the timer may be due
	l.run(t, "systemctl start attestd-backup.service")
	got := l.run(t, "stat -c '%U %a %n' /var/backups/attestd/*")
	if !regexp.MustCompile(`^attestd 600 /var/backups/attestd/attestd-\S+\n$`).MatchString(got) {
		t.Errorf("backups: %s", got)
	}
	// A backup also works while attestd is stopped.
	l.run(t, "systemctl stop attestd && sleep 1 && systemctl start attestd-backup.service && systemctl start attestd")
	if got := strings.TrimSpace(l.run(t, "ls /var/backups/attestd | wc -l")); got != "2" {
		t.Errorf("%s backups, want 2", got)
	}
	l.run(t, "systemctl start attestd-backup.timer")
	l.works(t)
}

// restore simulates the loss of the disk with the journal, but not of the HSM and the backup.
func (l *lifeCycle) restore(t *testing.T) {
	l.run(t,
		"attestd backup /root/all.tar.zst && systemctl stop attestd && rm /var/lib/attestd/attestd.db /var/lib/attestd/log.key")
	l.run(t, "attestd restore /root/all.tar.zst && systemctl start attestd")
	l.works(t)
}

// logKey moves the log key into the HSM. Root's commands use the PIN, which is a credential of the service, and start
// the HSM's library as the user attestd.
func (l *lifeCycle) logKey(t *testing.T) {
	l.run(t, "attestd hsm keygen --label log --algorithm ed25519 > /root/log-key")
	l.run(t, `{ echo journal:; grep '^  key: ' /root/log-key; } >> /etc/attestd/attestd.yaml && attestd config check`)
	l.run(t, "systemctl stop attestd && attestd log rotate-key --reason 'the log key moves into the HSM'")
	l.run(t, "attestd key create --name offline >/root/offline-key && attestd key list | grep -q offline")
	if got, err := l.try(t, "grep -rl PRIVATE+KEY /var/lib/attestd/log.key"); err == nil {
		t.Errorf("the secret is still in %s", got)
	}
	if got := l.run(t, "find /var/lib/attestd -user root"); got != "" {
		t.Errorf("root's files: %s", got)
	}
	l.run(t, "systemctl start attestd")
	const workers = `for c in $(grep -lx attestd-hsm /proc/[0-9]*/comm); do awk '/^Uid:/ {print $2}' "${c%comm}status"; done`
	uid := l.run(t, "id -u attestd")
	if got := l.run(t, workers); got != uid+uid {
		t.Errorf("the workers' users are %q, want %q twice", got, uid)
	}
	l.works(t)
	l.run(t, "attestd doctor")
	l.run(t, "systemctl stop attestd && sed -i '/^journal:/,$d' /etc/attestd/attestd.yaml")
	l.run(t, "attestd log rotate-key --reason 'the log key moves back' && systemctl start attestd")
	l.works(t)
}

const plainHTTP = "/run/systemd/system/attestd.service.d"

// socket moves the API to port 443, which attestd itself may not open. The API is plain HTTP, as behind a proxy that
// speaks TLS.
func (l *lifeCycle) socket(t *testing.T) {
	l.run(t, "mkdir -p "+plainHTTP+" && printf '[Service]\\nEnvironment=ATTESTD_SERVER_ALLOW_PLAIN_HTTP=true\\n' >"+
		plainHTTP+"/plain.conf && systemctl daemon-reload")
	l.run(t, "systemctl stop attestd && systemctl start attestd.socket")
	if got := l.post(t, "http://127.0.0.1:443/functions/v1/attest"); !strings.Contains(got, l.address) {
		t.Errorf("through the socket: %s", got)
	}
	if got := l.show(t, "attestd", "ActiveState")[0]; got != "active" {
		t.Errorf("attestd is %s after a connection", got)
	}
	l.run(t, "systemctl stop attestd.socket attestd && systemctl start attestd")
	l.works(t)
}

// wrongPIN gives attestd a PIN that the token refuses while clients connect. attestd must try the PIN only once.
func (l *lifeCycle) wrongPIN(t *testing.T) {
	const credential = "/etc/credstore.encrypted/attestd.pin"
	keep, change := "cp -a /etc/attestd/pin /root/kept.pin", "printf 0000 >/etc/attestd/pin"
	if _, err := os.Stat(filepath.Join(l.root, credential)); err == nil {
		keep, change = "cp -a "+credential+" /root/kept.pin",
			"printf 0000 | systemd-creds encrypt --name=pin --tpm2-pcrs= - "+credential
	}
	l.run(t, "systemctl stop attestd && "+keep+" && "+change)
	since := strings.TrimSpace(l.run(t, "date +%s.%N"))
	l.run(t, "systemctl start attestd.socket")
	for range 5 {
		if out, err := l.try(t, "curl -sS --max-time 3 http://127.0.0.1:443/healthz"); err == nil {
			t.Errorf("answered: %s", out)
		}
	}
	l.run(t, "sleep 7") // longer than RestartSec
	got := l.show(t, "attestd", "Result", "ExecMainStatus", "NRestarts", "ActiveState")
	if got[0] != "exit-code" || got[1] != "3" || got[2] != "0" || got[3] != "failed" {
		t.Errorf("result, status, restarts, state: %v", got)
	}
	if got := l.show(t, "attestd.socket", "ActiveState")[0]; got != "inactive" {
		t.Errorf("attestd.socket is %s", got)
	}
	// systemd's message id for the start of a unit.
	starts := strings.TrimSpace(l.run(t, "journalctl --no-pager -o cat --since=@"+since+
		" UNIT=attestd.service MESSAGE_ID=7d4958e842da4a758f6c1cdc7b36dcc5 | wc -l"))
	if starts != "1" {
		t.Errorf("the PIN was tried %s times", starts)
	}
	if _, err := os.Stat(filepath.Join(l.root, credential)); err == nil {
		l.run(t, "cp -a /root/kept.pin "+credential)
	} else {
		l.run(t, "cp -a /root/kept.pin /etc/attestd/pin")
	}
	l.run(t, "rm -r "+plainHTTP+" && systemctl daemon-reload && systemctl start attestd")
	l.works(t)
}

func (l *lifeCycle) upgrade(t *testing.T) {
	before := l.show(t, "attestd", "MainPID")[0]
	l.quietly(t, install(l.second))
	if got := l.run(t, "attestd version"); !strings.Contains(got, nextVersion(t)) {
		t.Errorf("installed is %s", got)
	}
	if got := l.show(t, "attestd", "MainPID", "ActiveState"); got[0] == before || got[1] != "active" {
		t.Errorf("process and state after the upgrade: %v, process before %s", got, before)
	}
	l.works(t)
}

func (l *lifeCycle) downgrade(t *testing.T) {
	before := l.show(t, "attestd", "MainPID")[0]
	out, err := l.try(t, "dpkg --install "+l.first)
	if err == nil || !strings.Contains(out, "Nothing was changed") {
		t.Errorf("%v\n%s", err, out)
	}
	if got := l.run(t, "dpkg-query -W -f '${Version} ${Status}' attestd"); got != nextVersion(t)+
		" install ok installed" {
		t.Errorf("installed: %s", got)
	}
	if got := l.show(t, "attestd", "MainPID")[0]; got != before {
		t.Errorf("process %s became %s", before, got)
	}
	l.works(t)
}

func (l *lifeCycle) rebooted(t *testing.T) {
	l.reboot(t)
	if got := l.show(t, "attestd", "ActiveState", "NRestarts"); got[0] != "active" || got[1] != "0" {
		t.Errorf("after the boot: %v", got)
	}
	l.works(t)
}

const data = "/var/lib/attestd/attestd.db /var/lib/attestd/log.key /var/lib/attestd/softhsm"

func (l *lifeCycle) remove(t *testing.T) {
	l.run(t, "dpkg --remove attestd")
	if got, err := l.try(t, "systemctl is-active attestd"); err == nil {
		t.Errorf("attestd is %s", got)
	}
	l.run(t, "ls -d /etc/attestd/attestd.yaml /etc/attestd/environment "+data)
	l.run(t, "dpkg --install "+l.second)
	if got := strings.TrimSpace(l.run(t, "systemctl is-enabled attestd")); got != "enabled" {
		t.Errorf("attestd is %s", got)
	}
	l.run(t, "systemctl start attestd")
	l.works(t)
}

func (l *lifeCycle) purge(t *testing.T) {
	out := l.run(t, "dpkg --purge attestd")
	if !strings.Contains(out, "rm -rf /var/lib/attestd") {
		t.Errorf("it does not tell how to delete what it kept:\n%s", out)
	}
	l.run(t, "ls -d /etc/attestd/api-key "+data)
	for _, gone := range []string{"/etc/attestd/attestd.yaml", "/etc/attestd/environment",
		"/etc/systemd/system/multi-user.target.wants/attestd.service"} {
		if out, err := l.try(t, "ls -d "+gone); err == nil {
			t.Errorf("still there: %s", out)
		}
	}
	l.run(t, "dpkg --install "+l.second)
	if out := l.run(t, "attestd setup --yes"); !strings.Contains(out, l.address) {
		t.Errorf("the key is not the one from before:\n%s", out)
	}
	l.run(t, "systemctl enable --quiet --now attestd")
	l.works(t)
}

// purgeAll purges the package from a terminal and confirms that everything is deleted.
func (l *lifeCycle) purgeAll(t *testing.T) {
	l.run(t, "dpkg --remove attestd")
	purge := func(answer string) string {
		return l.run(t, "(sleep 2; echo "+answer+
			"; sleep 1) | DEBIAN_FRONTEND= script --quiet --return --command 'dpkg --purge attestd' /dev/null")
	}
	if out := purge("yes"); !strings.Contains(out, "journal are kept") {
		t.Errorf("not kept:\n%s", out)
	}
	l.run(t, "ls -d "+data)
	l.run(t, "dpkg --install "+l.second+" && dpkg --remove attestd")
	purge("delete")
	if out, err := l.try(t,
		"ls -d /var/lib/attestd /var/backups/attestd /etc/attestd /etc/credstore.encrypted/attestd.pin 2>/dev/null"); err == nil || out != "" {
		t.Errorf("still there: %s", out)
	}
}

// TestRPMLifeCycle runs the .rpm's scripts on a tree with a shell and systemd's tools. The tree is a Debian, because no
// Red Hat is available. Services are not started.
func TestRPMLifeCycle(t *testing.T) {
	need(t, "rpm")
	m := newMachine(t)
	first, second := rpmFile(dist, version(t)), rpmFile(next(t), nextVersion(t))
	rpm := func(args ...string) string {
		t.Helper()
		return host(t, "rpm", append([]string{"--root", m.root, "--nodeps"}, args...)...)
	}
	silent := func(out string) {
		t.Helper()
		for line := range strings.Lines(out) {
			if !strings.HasPrefix(line, "rpm: ") { // a warning of Debian's rpm
				t.Errorf("it prints: %s", line)
			}
		}
	}
	silent(rpm("--install", first))
	for path, want := range map[string]string{
		"/etc/attestd":         "root:attestd 750",
		"/var/lib/attestd":     "attestd:attestd 700",
		"/var/backups/attestd": "attestd:attestd 700",
	} {
		if got := strings.TrimSpace(m.run(t, "stat -c '%U:%G %a' "+path)); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
	silent(rpm("--verify", "attestd"))
	m.run(t, "echo changed >>/etc/attestd/attestd.yaml && echo a >/var/lib/attestd/attestd.db")
	silent(rpm("--upgrade", second))
	if out, err := m.try(t, "attestd version"); err != nil || !strings.Contains(out, nextVersion(t)) {
		t.Errorf("after the upgrade: %v %s", err, out)
	}
	m.run(t, "grep changed /etc/attestd/attestd.yaml")
	absolute, err := filepath.Abs(first)
	if err != nil {
		t.Fatal(err)
	}
	if out, err := tryHost(t, "rpm", "--root", m.root, "--nodeps", "--upgrade", absolute); err == nil {
		t.Errorf("a downgrade was not refused: %s", out)
	}
	rpm("--erase", "attestd")
	m.run(t, "ls /var/lib/attestd/attestd.db && grep changed /etc/attestd/attestd.yaml")
	if got := strings.TrimSpace(m.run(t, "ls -A /etc/attestd")); got != "attestd.yaml" {
		t.Errorf("in /etc/attestd is left: %s", got)
	}
}
