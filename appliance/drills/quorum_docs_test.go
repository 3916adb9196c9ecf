package drills

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/ethereum/go-ethereum/common/hexutil"

	"github.com/attestd/attestd/appliance/chain/chaintest"
	"github.com/attestd/attestd/appliance/daemontest"
)

// quorumManual types docs/quorum.md.
type quorumManual struct {
	*testing.T
	console  [][]string // the commands of each block
	yaml     string     // the configuration
	node     *chaintest.Node
	contract *chaintest.Quorum
	members  map[string]*quorumMember
	base     map[string]string // the configuration of each member before it is in a quorum
	load     *memberLoad
}

func newQuorumManual(t *testing.T) *quorumManual {
	t.Helper()
	text, err := os.ReadFile("../../docs/quorum.md")
	if err != nil {
		t.Fatal(err)
	}
	q := &quorumManual{T: t, node: chaintest.New(t), members: map[string]*quorumMember{}, base: map[string]string{}}
	for _, b := range regexp.MustCompile("(?s)```(console|yaml)\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		if b[1] == "yaml" {
			q.yaml = b[2]
			continue
		}
		var commands []string
		for line := range strings.Lines(b[2]) {
			if command, is := strings.CutPrefix(strings.TrimSpace(line), "# "); is {
				commands = append(commands, command)
			}
		}
		q.console = append(q.console, commands)
	}
	return q
}

// setUp starts an appliance that signs alone.
func (q *quorumManual) setUp(name string) *quorumMember {
	q.Helper()
	m := newQuorumMember(q.T, name)
	m.Configure("ATTESTD_QUORUM_TIMEOUT=50s", "ATTESTD_SERVER_REQUEST_TIMEOUT=60s", fmt.Sprintf(
		`ATTESTD_CHAIN_CONTRACTS=[{"name": "usdc", "rpc": [%q], "address": %q, "start_block": 0, "confirmations": 0}]`,
		q.node.URL, chaintest.Contract))
	text, err := os.ReadFile(filepath.Join(m.Dir, "attestd.yaml"))
	if err == nil {
		err = os.MkdirAll(filepath.Join(m.Dir, "members"), 0o700)
	}
	if err != nil {
		q.Fatal(err)
	}
	q.members[name], q.base[name] = m, string(text)
	return m
}

// types types a block on a member. replace are pairs of names: the document's, and those of this member.
func (q *quorumManual) types(block int, on string, replace ...string) {
	q.Helper()
	m := q.members[on]
	for _, command := range q.console[block] {
		if command == "systemctl restart attestd" {
			m.signal(q.T, syscall.SIGTERM)
			_ = m.Cmd.Wait()
			m.Start(q.T)
			continue
		}
		cmd := exec.Command("sh", "-c", strings.NewReplacer(replace...).Replace(command))
		path := "PATH=" + filepath.Dir(m.Program) + string(filepath.ListSeparator) + os.Getenv("PATH")
		cmd.Env, cmd.Dir = append(m.Command().Env, path), m.Dir
		if out, err := cmd.CombinedOutput(); err != nil {
			q.Fatalf("%s: %s: %v\n%s\n%s", on, command, err, out, m.Log())
		}
	}
	q.load.settle(q.T)
}

// bring brings the key that a member made for another to the other's machine.
func (q *quorumManual) bring(from, to string) {
	q.Helper()
	text, err := os.ReadFile(filepath.Join(q.members[from].Dir, to+".key"))
	if err == nil {
		err = os.WriteFile(filepath.Join(q.members[to].Dir, "members", from+".key"), text, 0o600)
	}
	if err != nil {
		q.Fatal(err)
	}
}

var memberEntry = regexp.MustCompile(`\{ name: (\w+), signer: "[^"]*", url: "[^"]*", ` +
	`api_key: "file:/etc/attestd/members/\w+.key", verifier_key: "[^"]*" \}`)

// names writes the document's configuration for a member, with two other members.
func (q *quorumManual) names(on, first, second string) {
	q.Helper()
	text := strings.NewReplacer("tokyo", first, "lima", second, `contract: "0x…"`,
		fmt.Sprintf("contract: %q", q.contract.Address)).Replace(q.yaml)
	indented := regexp.MustCompile(`(?m)^   `).ReplaceAllString(text, "")
	filled := memberEntry.ReplaceAllStringFunc(indented, func(entry string) string {
		other := q.members[memberEntry.FindStringSubmatch(entry)[1]]
		return fmt.Sprintf(`{ name: %s, signer: %q, url: %q, api_key: "file:%s", verifier_key: %q }`, other.name,
			other.signer, other.proxy.URL, filepath.Join(q.members[on].Dir, "members", other.name+".key"),
			other.VerifierKey(q.T))
	})
	if strings.Contains(filled, "…") {
		q.Fatalf("not all is filled in:\n%s", filled)
	}
	q.members[on].Write(q.T, "attestd.yaml", q.base[on]+"\n"+filled)
}

// memberLoad is a steady load of clients that ask another member if one does not answer.
type memberLoad struct {
	contract *chaintest.Quorum
	mu       sync.Mutex
	asks     []*quorumMember // in this order
	next     atomic.Int64
	done     [2]atomic.Int64 // requests of each client
	ended    chan struct{}
	clients  sync.WaitGroup
}

func (l *memberLoad) start(t *testing.T, asks ...*quorumMember) {
	l.ask(asks...)
	l.ended = make(chan struct{})
	for i := range l.done {
		l.clients.Go(func() {
			for {
				select {
				case <-l.ended:
					return
				default:
					l.request(t)
					l.done[i].Add(1)
				}
			}
		})
	}
}

func (l *memberLoad) ask(members ...*quorumMember) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asks = members
}

// request makes a request that must succeed, and whose answer the contract must accept at that moment.
func (l *memberLoad) request(t *testing.T) {
	l.mu.Lock()
	asks := l.asks
	l.mu.Unlock()
	n, why := int(l.next.Add(1)), ""
	for i := range asks {
		m := asks[(n+i)%len(asks)]
		got, err := m.attestAs(t, n, "")
		if err != nil || got.status != http.StatusOK {
			why += fmt.Sprintf("\n%s: %v %s", m.name, err, got.text)
			continue
		}
		var answer struct {
			Signature struct{ Bytes hexutil.Bytes }
		}
		if err := json.Unmarshal([]byte(got.text), &answer); err != nil {
			t.Error(err)
		} else if !l.contract.Accepts(t, got.Hash, answer.Signature.Bytes) {
			t.Errorf("the contract refuses the answer of %s: %s", m.name, got.text)
		}
		return
	}
	t.Errorf("request %d failed everywhere: %s", n, why)
}

// settle waits until each client has begun and ended another request.
func (l *memberLoad) settle(t *testing.T) {
	t.Helper()
	for i := range l.done {
		before := l.done[i].Load()
		daemontest.Await(t, "the clients go on", func() (bool, string) { return l.done[i].Load() >= before+2, "they wait" })
	}
}

func (l *memberLoad) stop() {
	close(l.ended)
	l.clients.Wait()
}

// From one appliance to three members, of which one is then replaced, as the document says, while clients attest. No
// request fails, and the contract accepts each answer at the moment of the answer.
func TestTheDocumentOfTheQuorumIsTyped(t *testing.T) {
	q := newQuorumManual(t)
	if len(q.console) != 6 {
		t.Fatalf("%d blocks of commands", len(q.console))
	}
	geneva := q.setUp("geneva")
	q.contract = q.node.DeployQuorum(t, 1, geneva.signer)
	q.node.SetAttestor(t, q.contract.Address)
	q.load = &memberLoad{contract: q.contract}
	q.load.start(t, geneva)
	defer q.load.stop()
	q.load.settle(t)

	tokyo, lima := q.setUp("tokyo"), q.setUp("lima")
	q.contract.AddMember(t, tokyo.signer)
	q.contract.AddMember(t, lima.signer)
	all := []string{"geneva", "tokyo", "lima"}
	for i, from := range all {
		first, second := all[(i+1)%3], all[(i+2)%3]
		q.types(0, from, "tokyo", first, "lima", second)
		q.bring(from, first)
		q.bring(from, second)
	}
	for _, on := range []string{"tokyo", "lima", "geneva"} {
		i := map[string]int{"geneva": 0, "tokyo": 1, "lima": 2}[on]
		q.names(on, all[(i+1)%3], all[(i+2)%3])
		q.types(1, on)
		if on == "lima" {
			q.load.ask(geneva, tokyo, lima) // no client asks them before
			q.load.settle(t)
		}
	}
	q.contract.SetThreshold(t, 2)
	q.types(2, "geneva")
	if out := geneva.Run(t, "quorum", "status"); !strings.Contains(out,
		"2 of 3 members must sign, as configured here") {
		t.Error(out)
	}

	oslo := q.setUp("oslo")
	q.contract.AddMember(t, oslo.signer)
	for _, from := range []string{"geneva", "tokyo"} {
		q.types(3, from)
		q.bring(from, "oslo")
	}
	q.types(0, "oslo", "tokyo", "geneva", "lima", "tokyo")
	q.bring("oslo", "geneva")
	q.bring("oslo", "tokyo")
	q.names("oslo", "geneva", "tokyo")
	q.types(1, "oslo")
	q.load.ask(geneva, tokyo, lima, oslo)
	for on, other := range map[string]string{"geneva": "tokyo", "tokyo": "geneva"} {
		q.names(on, other, "oslo")
		q.types(4, on)
	}
	q.load.ask(geneva, tokyo, oslo)
	q.load.settle(t)
	for _, on := range []string{"geneva", "tokyo"} {
		q.types(5, on)
	}
	lima.Kill(t)
	q.contract.RemoveMember(t, lima.signer)
	q.load.settle(t)
	for _, m := range []*quorumMember{geneva, tokyo, oslo} {
		if out := m.Run(t, "quorum", "status"); !strings.Contains(out, "2 of 3 members must sign, as configured here") {
			t.Errorf("%s: %s", m.name, out)
		}
	}
	t.Logf("%d requests, and none failed", q.load.next.Load())
}
