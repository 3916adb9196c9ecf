//go:build packages

package packaging

import (
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// One of the last commits with /etc/attestd/attestd.yaml as a configuration file of the packages. setup wrote to that
// file.
const withConffile = "af4172ec7486203bb6b6bd5b5c6aabf33815eaa0"

// beforeVersion is older than any other version.
const beforeVersion = "0.0.0~before"

// before returns the packages of an older version with the configuration file as a conffile, built once. If the clone
// lacks that commit, it is this version with such a file.
func before(t *testing.T) string {
	t.Helper()
	beforeOnce.Do(func() {
		source := t.TempDir()
		if _, err := tryHost(t, "git", "-C", "..", "cat-file", "-e", withConffile+"^{commit}"); err == nil {
			host(t, "sh", "-c", `git -C .. archive "$0" | tar -x -C "$1"`, withConffile, source)
		} else {
			t.Logf("%s is not in this clone: the version before is this one with a configuration file", withConffile)
			source = copyOfSource(t)
			edit(t, filepath.Join(source, "packaging/nfpm.yaml"), `
  - { dst: /etc/attestd, type: dir, file_info: { mode: 0750 } }
`, `
  - { dst: /etc/attestd, type: dir, file_info: { mode: 0750 } }
  - { src: usr/share/attestd/attestd.yaml, dst: /etc/attestd/attestd.yaml, type: config|noreplace, file_info: { mode: 0640 } }
`)
			edit(t, filepath.Join(source, "packaging/attestd.spec"), "\n%ghost ", "\n%config(noreplace) ")
			edit(t, filepath.Join(source, "packaging/deb/postinst"), "\n	[ -d /run/systemd/system ] || exit 0\n",
				"\n	chgrp attestd /etc/attestd/attestd.yaml\n	[ -d /run/systemd/system ] || exit 0\n")
		}
		build(t, source, beforeVersion, nil)
		beforeDir = kept(t, filepath.Join(source, "dist"), beforeVersion)
	})
	return beforeDir
}

var (
	beforeOnce sync.Once
	beforeDir  string
)

// operators is text that a person added to setup's configuration.
const operators = `limits: { default_rate: 50/s }
graphql: { source: "off" }
`

// TestDebUpgrade upgrades unattended: from a version with a conffile to this one, and to one with other defaults. Then
// the machine is lost.
func TestDebUpgrade(t *testing.T) {
	need(t, "dpkg-deb")
	needsBoot(t)
	u := &upgrade{lifeCycle: lifeCycle{machine: newMachine(t)}}
	u.boot(t)
	for _, step := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"the version before", u.versionBefore},
		{"to this version", func(t *testing.T) { u.upgradeTo(t, deb(dist, version(t)), version(t)) }},
		{"to one with another default", func(t *testing.T) {
			u.upgradeTo(t, deb(next(t), nextVersion(t)), nextVersion(t))
		}},
		{"the default is the new one", u.newDefault},
		{"the machine is lost", u.loseMachine},
		{"another takes over", u.takeOver},
		{"without systemd-creds", u.withoutCredentials},
		{"purge", u.purged},
	} {
		if !t.Run(step.name, step.run) {
			out, _ := u.try(t,
				"systemctl status --no-pager -l attestd; journalctl --no-pager -n 40 -o cat; ls -la /etc/attestd; attestd doctor")
			t.Log(out)
			t.Fatalf("%s failed: the steps after it are left out", step.name)
		}
	}
}

type upgrade struct{ lifeCycle }

const configuration = "/etc/attestd/attestd.yaml"

// aptInstall installs as an unattended machine would, without an option that answers questions.
func (u *upgrade) aptInstall(t *testing.T, file string, flags ...string) string {
	t.Helper()
	return u.run(t, "cd /root && DEBIAN_FRONTEND=noninteractive apt-get -y install "+strings.Join(flags, " ")+" ./"+
		filepath.Base(u.put(t, file))+" </dev/null")
}

// noNetwork omits recommended packages, which the machine cannot download.
const noNetwork = "--no-install-recommends"

func (u *upgrade) versionBefore(t *testing.T) {
	u.aptInstall(t, deb(before(t), beforeVersion), noNetwork)
	if got := u.run(t, "dpkg-query -W -f '${Conffiles}' attestd"); !strings.Contains(got, configuration) {
		t.Fatalf("it is no version with a conffile: %q", got)
	}
	u.setup(t)
	u.run(t, "printf '%s' '"+operators+"' >>"+configuration)
	u.run(t, "systemctl enable --quiet --now attestd attestd-backup.timer")
	u.attest(t)
}

// identity describes the configuration file, which must stay the same through an upgrade: content, owner, mode and
// inode.
func (u *upgrade) identity(t *testing.T) string {
	t.Helper()
	return u.run(t, "sha256sum "+configuration+" && stat -c '%U:%G %a, file %i' "+configuration+
		" && find /etc/attestd /etc/credstore.encrypted | sort")
}

func (u *upgrade) upgradeTo(t *testing.T, file, version string) {
	file0, process := u.identity(t), u.show(t, "attestd", "MainPID")[0]
	out := u.aptInstall(t, file)
	if got := u.run(t, "dpkg-query -W -f '${Version} ${Status}' attestd; dpkg --audit"); got != version+
		" install ok installed" {
		t.Errorf("installed: %s\n%s", got, out)
	}
	if got := u.identity(t); got != file0 {
		t.Errorf("the configuration was\n%s\nand is\n%s", file0, got)
	}
	if got := u.show(t, "attestd", "MainPID", "ActiveState", "NRestarts"); got[0] == process || got[1] != "active" ||
		got[2] != "0" {
		t.Errorf("process, state and restarts after the upgrade: %v, process before %s\n%s", got, process, out)
	}
	if got := u.run(t, "attestd version"); !strings.Contains(got, version) {
		t.Errorf("the program is %s", got)
	}
	if got := u.run(t, "dpkg-query -W -f '${Conffiles}' attestd"); !strings.HasSuffix(got, " obsolete") {
		t.Errorf("dpkg's configuration files: %q", got)
	}
	u.hasOperatorsValues(t)
	u.works(t)
	if out, err := u.try(t, "attestd doctor"); err != nil {
		t.Errorf("doctor: %v\n%s", err, out)
	}
}

func (u *upgrade) hasOperatorsValues(t *testing.T) {
	t.Helper()
	shown := u.run(t, "attestd config show")
	for _, want := range []string{`default_rate: "50/s"`, `source: "off"`, `pin-source=`} {
		if !strings.Contains(shown, want) {
			t.Errorf("no %s in\n%s", want, shown)
		}
	}
}

func (u *upgrade) newDefault(t *testing.T) {
	if got := u.run(t,
		"attestd config show | grep idle_timeout: && grep idle_timeout: /usr/share/attestd/attestd.yaml"); strings.Count(got, `"3m0s"`) != 2 {
		t.Errorf("in effect, and in the reference: %s", got)
	}
}

const lostCredential = "/etc/credstore.encrypted/attestd.pin"

// loseMachine leaves only the files that an operator keeps elsewhere: the configuration, the token's folder, a backup
// and the PIN. The secret of systemd-creds is lost.
func (u *upgrade) loseMachine(t *testing.T) {
	u.run(t, "if [ -e "+lostCredential+" ]; then cp -a "+lostCredential+
		" /root/lost.pin; systemd-creds decrypt --name=pin "+lostCredential+
		" /root/pin; else cp /etc/attestd/pin /root/pin; fi")
	u.run(t, "attestd backup /root/backup.tar.zst && systemctl stop attestd")
	u.run(t,
		"tar -C /var/lib/attestd -czf /root/token.tar.gz softhsm && tar -C /etc --exclude=attestd/pin -czf /root/etc.tar.gz attestd")
	u.run(t,
		"dpkg --purge attestd && rm -rf /var/lib/attestd /var/backups/attestd /etc/attestd /etc/credstore.encrypted /var/lib/systemd/credential.secret")
	u.aptInstall(t, deb(next(t), nextVersion(t)), noNetwork)
}

func (u *upgrade) takeOver(t *testing.T) {
	u.run(t, "tar -C /etc -xzf /root/etc.tar.gz && cp -a "+configuration+" /root/before.yaml")
	// Without the PIN or the token, setup names the missing part and creates no file.
	for _, c := range []struct{ command, want string }{
		{"attestd setup --yes", "give a file with the PIN: --pin-file FILE"},
		{"attestd hsm status", "the PIN"},
		{"attestd setup --yes --pin-file /root/p", "--pin-file: open /root/p: no such file"},
		{"attestd setup --yes --pin-file /root/pin", "setup does not create one"},
		{"attestd setup --yes", "give a file with the PIN: --pin-file FILE"},
	} {
		out, err := u.try(t, c.command)
		if err == nil || !strings.Contains(out, c.want) {
			t.Errorf("%s: %v\n%s", c.command, err, out)
		}
	}
	// A PIN that was encrypted for the lost machine is useless on this one.
	u.run(t, "[ ! -e /root/lost.pin ] || cp -a /root/lost.pin "+lostCredential)
	u.run(t, "ls /var/lib/attestd/softhsm && exit 1; tar -C /var/lib/attestd -xzf /root/token.tar.gz")
	out := u.run(t, "attestd setup --yes --pin-file /root/pin")
	for _, want := range []string{"kept  the token", "kept  the key", u.address, "attestd restore FILE"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	u.run(t, "cmp "+configuration+
		" /root/before.yaml && ls /var/lib/attestd/attestd.db && exit 1; attestd restore /root/backup.tar.zst && systemctl enable --quiet --now attestd")
	u.hasOperatorsValues(t)
	u.works(t)
}

// withoutCredentials is a machine where systemd-creds does not work. The PIN becomes a file, which hsm.uri names.
func (u *upgrade) withoutCredentials(t *testing.T) {
	if _, err := u.try(t, "ls "+lostCredential); err != nil {
		t.Skip("systemd-creds does not work in this machine: the steps before were without it")
	}
	u.run(t, "systemctl stop attestd && rm "+lostCredential+" && mount --bind /bin/false /usr/bin/systemd-creds")
	out := u.run(t, "attestd setup --yes --pin-file /root/pin; umount /usr/bin/systemd-creds")
	if !strings.Contains(out, "made  /etc/attestd/pin") || !strings.Contains(out, "kept  the key") {
		t.Error(out)
	}
	if got := strings.TrimSpace(u.run(t, "stat -c '%U %a' /etc/attestd/pin && grep -v '^#' "+configuration+
		" | grep -o 'pin-source=.*pin'")); got != "attestd 400\npin-source=file:/etc/attestd/pin" {
		t.Errorf("the PIN: %s", got)
	}
	u.run(t, "systemctl start attestd")
	u.works(t)
}

func (u *upgrade) purged(t *testing.T) {
	u.run(t, "dpkg --purge attestd")
	if out, err := u.try(t, "ls "+configuration); err == nil {
		t.Errorf("still there: %s", out)
	}
}

// TestRPMUpgrade is the same for rpm, which would rename a configuration file that a package no longer contains.
func TestRPMUpgrade(t *testing.T) {
	need(t, "rpm")
	m := newMachine(t)
	rpm := func(args ...string) string {
		t.Helper()
		return host(t, "rpm", append([]string{"--root", m.root}, args...)...)
	}
	identity := func() string {
		t.Helper()
		return m.run(t, "sha256sum "+configuration+" && stat -c '%U:%G %a, file %i' "+configuration+
			" && ls -A /etc/attestd")
	}
	rpm("--install", "--nodeps", rpmFile(before(t), beforeVersion))
	if got := rpm("-q", "--configfiles", "attestd"); !strings.Contains(got, configuration) {
		t.Fatalf("it is no version with a configuration file: %q", got)
	}
	m.run(t, "printf '%s' '"+operators+"' >>"+configuration+" && attestd setup --yes")
	want := identity()
	for _, file := range []string{rpmFile(dist, version(t)), rpmFile(next(t), nextVersion(t))} {
		if out := rpm("--upgrade", "--nodeps", file); strings.Contains(out, "warning") {
			t.Error(out)
		}
		if got := identity(); got != want {
			t.Errorf("after %s the configuration was\n%s\nand is\n%s", filepath.Base(file), want, got)
		}
		m.run(t, `attestd config show | grep -q 'default_rate: "50/s"'`)
		if out, err := tryHost(t, "rpm", "--root", m.root, "--verify", "--nodeps", "attestd"); err != nil {
			t.Errorf("rpm finds fault: %s", out)
		}
	}
	rpm("--erase", "attestd")
	if got := identity(); got != want {
		t.Errorf("after removing it the configuration was\n%s\nand is\n%s", want, got)
	}
}
