//go:build packages

package packaging

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The packages of the Debian machines with the database and the load balancer.
const includedWithDatabase = "systemd,systemd-sysv,softhsm2,ca-certificates,curl,postgresql,haproxy,keepalived"

// network connects booted machines with a bridge. Each machine has a host name.
type network struct {
	bridge string
	names  []string
}

func newNetwork(t *testing.T) *network {
	t.Helper()
	need(t, "ip", "nsenter")
	n := &network{bridge: "att" + strconv.FormatInt(time.Now().UnixNano()%1e9, 36)}
	host(t, "ip", "link", "add", n.bridge, "type", "bridge")
	t.Cleanup(func() {
		if out, err := exec.Command("ip", "link", "delete", n.bridge).CombinedOutput(); err != nil {
			// the test's context has ended
			t.Errorf("%v: %s", err, out)
		}
	})
	host(t, "ip", "link", "set", n.bridge, "up")
	return n
}

// add connects a machine under a host name. Call introduce to make earlier machines know it.
func (n *network) add(t *testing.T, m *machine, name string) {
	t.Helper()
	n.names = append(n.names, name)
	at, pid := len(n.names), strconv.Itoa(m.leader)
	port := fmt.Sprintf("%s-%d", n.bridge, at)
	host(t, "ip", "link", "add", port, "type", "veth", "peer", "name", "host0", "netns", pid)
	host(t, "ip", "link", "set", port, "master", n.bridge, "up")
	host(t, "nsenter", "--target", pid, "--net", "ip", "address", "add", n.address(at)+"/24", "dev", "host0")
	host(t, "nsenter", "--target", pid, "--net", "ip", "link", "set", "host0", "up")
	m.run(t, "hostname "+name)
}

func (n *network) address(at int) string { return fmt.Sprintf("10.213.77.%d", at) }

// introduce writes the names of all machines to a machine's /etc/hosts.
func (n *network) introduce(t *testing.T, m *machine) {
	t.Helper()
	var hosts strings.Builder
	hosts.WriteString("127.0.0.1 localhost\n")
	for i, name := range n.names {
		fmt.Fprintf(&hosts, "%s %s %s.example.com\n", n.address(i+1), name, name)
	}
	m.write(t, "/etc/hosts", hosts.String())
	m.run(t, "chmod 644 /etc/hosts")
}

// team is the machines of docs/cluster.md. An operator types its commands on them.
type team struct {
	*network
	manual   *manual
	machines map[string]*operator
	url      string // of each appliance, on its own machine
}

func newTeam(t *testing.T) *team {
	t.Helper()
	team := &team{network: newNetwork(t), manual: readManual(t, "../docs/cluster.md"), machines: map[string]*operator{},
		url: onLoopback}
	for _, name := range []string{"db1", "db2"} {
		team.machines[name] = &operator{manual: team.manual, folder: "/root",
			lifeCycle: &lifeCycle{machine: newTree(t, suite, includedWithDatabase)}}
	}
	for _, name := range []string{"one", "two", "three"} {
		team.machines[name] = &operator{manual: team.manual, folder: "/root",
			lifeCycle: &lifeCycle{machine: newMachine(t)}}
	}
	for _, name := range []string{"db1", "db2", "one", "two", "three"} {
		m := team.machines[name]
		m.boot(t)
		team.add(t, m.machine, name)
	}
	for _, m := range team.machines {
		team.introduce(t, m.machine)
	}
	return team
}

// TestCluster follows docs/cluster.md as an operator would: from one appliance to three, and through each failure.
func TestCluster(t *testing.T) {
	need(t, "dpkg-deb")
	needsBoot(t)
	team := newTeam(t)
	for _, scenario := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"the database", team.database},
		{"one appliance", team.first},
		{"from one", team.fromOne},
		{"to three", team.toThree},
		{"the load balancer", team.loadBalancer},
		{"a lost appliance", team.lostAppliance},
		{"a lost primary", team.lostPrimary},
		{"a standby that is away", team.standbyAway},
		{"said of the database", team.ofTheDatabase},
		{"an upgrade", team.upgrade},
		{"back to one", team.backToOne},
	} {
		started := time.Now()
		if !t.Run(scenario.name, scenario.run) {
			t.Fatalf("%s failed: the scenarios after it are left out", scenario.name)
		}
		t.Logf("MEASURED %s: %s", scenario.name, time.Since(started).Round(100*time.Millisecond))
	}
	team.manual.checkAllRan(t)
	team.checkREADME(t)
}

// checkREADME checks that each command of README's short procedure was typed.
func (team *team) checkREADME(t *testing.T) {
	t.Helper()
	_, section, found := strings.Cut(readText(t, "../README.md"), "\n### From one appliance to three\n")
	section, _, _ = strings.Cut(section, "\n[docs/cluster.md]")
	lines := 0
	for line := range strings.Lines(section) {
		if line, isCommand := strings.CutPrefix(line, "# "); isCommand {
			if lines++; !strings.Contains(team.manual.typed, strings.TrimSpace(line)) {
				t.Errorf("README has a command that nobody has typed: %s", line)
			}
		}
	}
	if !found || lines == 0 {
		t.Error("README has no way from one appliance to three")
	}
}

// types makes the operator type a block at a machine.
func (team *team) types(t *testing.T, at, block string, answers ...string) string {
	t.Helper()
	return team.machines[at].types(t, block, answers...)
}

func (team *team) database(t *testing.T) {
	team.types(t, "db1", "The database, console 1", "of the owner", "of the owner", "of the standby", "of the standby")
	authority := newAuthority(t)
	crt, key := authority.certificate(t, "db1.example.com", "db2.example.com")
	for _, name := range []string{"db1", "db2"} {
		m := team.machines[name]
		m.run(t, "hostname "+name)
		conf := team.manual.read(t, "The database, ini 1")
		m.write(t, "/etc/postgresql/15/main/conf.d/attestd.conf",
			strings.ReplaceAll(conf, "cluster_name = 'db1'", "cluster_name = '"+name+"'"))
		m.write(t, "/etc/postgresql/15/main/conf.d/synchronous.conf", team.manual.read(t, "The database, ini 2"))
		m.write(t, "/etc/postgresql/tls.crt", crt)
		m.write(t, "/etc/postgresql/tls.key", key)
		m.run(t,
			"chown postgres /etc/postgresql/tls.* /etc/postgresql/15/main/conf.d/*.conf && chmod 600 /etc/postgresql/tls.key")
		m.types(t, "The database, console 2")
	}
	team.types(t, "db2", "The database, console 3", "of the standby")
	if out := team.waits(t, "db1"); !strings.Contains(team.types(t, "db1", "The database, console 4"), "quorum") {
		t.Errorf("commits wait for no standby:\n%s", out)
	}
	team.machines["one"].write(t, "/root/database-ca.crt", authority.pem)
}

// waits returns once the server's commits wait for a standby.
func (team *team) waits(t *testing.T, at string) string {
	t.Helper()
	return team.machines[at].run(t,
		`for i in $(seq 600); do runuser -u postgres -- psql -Atc "SELECT sync_state FROM pg_stat_replication" | grep quorum && exit; sleep 0.1; done; exit 1`)
}

// authority issues certificates.
type authority struct {
	pem  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) authority {
	t.Helper()
	a := authority{cert: &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "an authority"}, IsCA: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(1, 0, 0), BasicConstraintsValid: true,
	}}
	a.pem, _ = a.issue(t, a.cert)
	return a
}

// certificate returns a certificate for a server of these names, and its key.
func (a authority) certificate(t *testing.T, names ...string) (crt, key string) {
	t.Helper()
	return a.issue(t, &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: names[0]},
		DNSNames: names, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(1, 0, 0)})
}

// issue signs a certificate. The authority's own is signed by itself.
func (a *authority) issue(t *testing.T, template *x509.Certificate) (crt, key string) {
	t.Helper()
	secret, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if a.key == nil {
		a.key = secret
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, a.cert, secret.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(secret)
	if err != nil {
		t.Fatal(err)
	}
	pemOf := func(kind string, der []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	return pemOf("CERTIFICATE", cert), pemOf("PRIVATE KEY", der)
}

// first sets up the first appliance, by docs/operations.md.
func (team *team) first(t *testing.T) {
	one := team.machines["one"]
	one.carry(t, "/root", deb(dist, version(t)))
	one.run(t,
		"hostname one; apt-get install -y ./root/attestd_*.deb >/dev/null 2>&1 && attestd setup --yes >/root/setup && systemctl enable --quiet --now attestd")
	one.address = address(t, one.run(t, "cat /root/setup"))
	one.answer = one.post(t, onLoopback+"/functions/v1/attest")
	(&operator{lifeCycle: one.lifeCycle}).first(t)
	one.run(t, "install -m 644 /root/database-ca.crt /etc/attestd/database-ca.crt")
}

func (team *team) fromOne(t *testing.T) {
	one := team.machines["one"]
	out := one.types(t, "From one appliance to three, console 1", "of the owner")
	store := team.manual.read(t, "From one appliance to three, yaml 1")
	if !strings.Contains(out, strings.TrimSpace(store)) {
		t.Errorf("store init does not print %s", store)
	}
	one.configures(t, "From one appliance to three, yaml 1")
	one.types(t, "From one appliance to three, console 2")
	one.works(t)
	one.types(t, "From one appliance to three, console 3")
}

func (team *team) toThree(t *testing.T) {
	one := team.machines["one"]
	from := func(file string) string { return filepath.Join(one.root, file) }
	for _, name := range []string{"two", "three"} {
		m := team.machines[name]
		m.carry(t, "/root/carried", deb(dist, version(t)), from("root/member.bundle"), from("root/passphrase"),
			from("root/member.tar.gz"), from("root/pin"))
		m.run(t, "hostname "+name)
		out := m.types(t, "From one appliance to three, console 4", "y")
		for _, want := range []string{one.address, name, "a commit waits for a standby"} {
			if !strings.Contains(out, want) {
				t.Errorf("%s: there is no %q", name, want)
			}
		}
		m.address, m.id = one.address, one.id
		host(t, "cp", from("etc/attestd/api-key"), filepath.Join(m.root, "etc/attestd/api-key"))
		m.works(t) // reads the first attestation, which another appliance made
	}
	if out := one.run(t, "attestd cluster status"); !strings.Contains(out, "two ") || !strings.Contains(out, "three ") {
		t.Errorf("the members:\n%s", out)
	}
}

// loadBalancer gives the appliances certificates and port 443, by docs/operations.md, and runs HAProxy on db1.
func (team *team) loadBalancer(t *testing.T) {
	authority := newAuthority(t)
	operations := readManual(t, "../docs/operations.md")
	for _, name := range []string{"one", "two", "three"} {
		crt, key := authority.certificate(t, name+".example.com")
		m := &operator{lifeCycle: team.machines[name].lifeCycle, manual: operations, folder: "/root"}
		m.write(t, "/root/tls.crt", crt)
		m.write(t, "/root/tls.key", key)
		m.types(t, "Port 443 and TLS, console 1")
		m.configures(t, "Port 443 and TLS, yaml 1")
		m.types(t, "Port 443 and TLS, console 2")
	}
	team.url = on443
	lb := team.machines["db1"]
	crt, key := authority.certificate(t, "attestd.example.com")
	lb.write(t, "/etc/haproxy/attestd.pem", crt+key)
	lb.write(t, "/etc/haproxy/appliances-ca.pem", authority.pem)
	lb.write(t, "/etc/haproxy/haproxy.cfg", team.manual.read(t, "HAProxy, haproxy 1"))
	lb.types(t, "HAProxy, console 1")
	lb.write(t, "/etc/keepalived/keepalived.conf", team.manual.read(t, "keepalived, keepalived 1"))
	lb.types(t, "keepalived, console 1")
	host(t, "cp", filepath.Join(team.machines["one"].root, "etc/attestd/api-key"), lb.root+"/root/api-key")
	attest := `curl -sS --cacert /etc/haproxy/appliances-ca.pem --resolve attestd.example.com:443:127.0.0.1 ` +
		`--fail-with-body -H 'content-type: application/json' -H "x-api-key: $(cat /root/api-key)" ` +
		`-d '{"unspendableAddress":"` + unspendable + `","beneficiary":"` + beneficiary +
		`"}' https://attestd.example.com/functions/v1/attest`
	// Reaches each of the three appliances in turn, twice, after haproxy's health checks.
	lb.run(t, "for i in $(seq 60); do "+strings.Repeat(attest+" && ", 6)+"exit 0; sleep 1; done; exit 1")
	out := lb.run(t, "journalctl --no-pager -o cat -u haproxy")
	for _, name := range []string{"one", "two", "three"} {
		if !strings.Contains(out, " appliances/"+name+" ") {
			t.Errorf("haproxy sent no request to %s:\n%s", name, out)
		}
	}
}

func (team *team) lostAppliance(t *testing.T) {
	team.machines["three"].run(t, "systemctl kill --signal=KILL attestd; systemctl stop attestd")
	one := team.machines["one"]
	one.worksAt(t, team.url)
	one.types(t, "An appliance is lost, console 1")
	team.types(t, "one", "When something fails, console 1")
	team.machines["three"].run(t, "systemctl start attestd")
}

func (team *team) lostPrimary(t *testing.T) {
	team.machines["db1"].run(t, "systemctl kill --signal=KILL postgresql@15-main; systemctl stop postgresql@15-main")
	team.types(t, "db2", "The primary is lost, console 1")
	team.types(t, "db1", "The primary is lost, console 2", "of the standby")
	team.waits(t, "db2")
	team.everyoneWorks(t)
}

func (team *team) everyoneWorks(t *testing.T) {
	t.Helper()
	for _, name := range []string{"one", "two", "three"} {
		team.machines[name].worksAt(t, team.url)
	}
}

func (team *team) standbyAway(t *testing.T) {
	team.machines["db1"].run(t, "systemctl stop postgresql@15-main")
	if out, err := team.machines["one"].try(t,
		"curl -sS --insecure --fail "+team.url+"/readyz; sleep 8; curl -sS --insecure --fail "+team.url+
			"/readyz"); err != nil {
		t.Logf("while the standby is away: %s", out)
	}
	team.types(t, "db2", "The standby is away, console 1")
	team.everyoneWorks(t)
	team.machines["db1"].run(t, "systemctl start postgresql@15-main")
	team.types(t, "db2", "The standby is away, console 2")
	team.waits(t, "db2")
	team.everyoneWorks(t)
}

// ofTheDatabase types the commands for a full database, for a lack of connections, and for wrong clocks.
func (team *team) ofTheDatabase(t *testing.T) {
	team.machines["db2"].run(t,
		"systemctl kill --signal=KILL postgresql@15-main; for i in $(seq 100); do systemctl is-active --quiet postgresql@15-main || break; sleep 0.1; done")
	team.types(t, "db2", "The database is full, console 1")
	team.types(t, "db2", "No connections are left, console 1")
	// The standby reconnects after up to 5 s (wal_retrieve_retry_interval). Until then commits block, and no appliance
	// is ready.
	team.waits(t, "db2")
	team.machines["two"].run(t,
		"for i in $(seq 100); do curl -sS --insecure --fail "+team.url+"/readyz && exit; sleep 0.2; done; exit 1")
	team.types(t, "two", "Clocks apart, console 1")
	team.everyoneWorks(t)
}

func (team *team) upgrade(t *testing.T) {
	one := team.machines["one"]
	one.carry(t, "/root/newer", deb(next(t), nextVersion(t)))
	one.types(t, "Upgrade, console 1", "y")
	one.folder = "/root"
	team.everyoneWorks(t)
}

func (team *team) backToOne(t *testing.T) {
	for _, name := range []string{"two", "three"} {
		team.machines[name].run(t, "systemctl disable --quiet --now attestd")
	}
	team.machines["one"].types(t, "Back to one, console 1")
	team.machines["one"].worksAt(t, team.url)
}
