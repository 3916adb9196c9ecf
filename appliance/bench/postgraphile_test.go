package bench

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/attestd/attestd/appliance/daemontest"
	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/store/postgres/postgrestest"
	"github.com/attestd/attestd/store/replica"
)

// postGraphile is PostGraphile 5 on a tuned PostgreSQL that has the transfers of a replica. Its program is in
// testdata/postgraphile.
type postGraphile struct {
	url      string
	server   *postgrestest.Server
	pid      int
	requests [][][]byte // by readKinds
}

const postGraphileFolder = "testdata/postgraphile"

//go:embed testdata/postgraphile/schema.sql
var postGraphileSchema string

// newPostGraphile starts it with the transfers of a replica that no daemon uses. It returns nil if the program is not
// installed.
func newPostGraphile(b *testing.B, replicaFile string) *postGraphile {
	if _, err := os.Stat(postGraphileFolder + "/node_modules/.bin/node"); err != nil {
		fmt.Println("PostGraphile is not measured: to install it, run: make bench-peer")
		return nil
	}
	p := &postGraphile{server: postgrestest.NewServer(b, postgrestest.Settings{
		"shared_buffers": "2GB", "effective_cache_size": "8GB", "work_mem": "64MB", "maintenance_work_mem": "512MB",
		"random_page_cost": "1.1", "jit": "off", "max_wal_size": "8GB",
	})}
	p.fill(b, replicaFile)
	address := daemontest.FreeAddress(b)
	_, port, _ := strings.Cut(address, ":")
	cmd := exec.Command("node_modules/.bin/node", "server.mjs")
	cmd.Dir = postGraphileFolder
	cmd.Env = append(os.Environ(), "DATABASE_URL="+p.server.URL("postgres"), "PORT="+port, "NODE_ENV=production",
		"GRAPHILE_ENV=production")
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	daemontest.WaitListening(b, address)
	p.url, p.pid = "http://"+address, cmd.Process.Pid
	return p
}

// prepare makes the requests, and sends them until the program is compiled. The first answer of each kind must have the
// rows that attestd answers.
func (p *postGraphile) prepare(b *testing.B, attestd string, s *readSamples) {
	for _, k := range readKinds {
		theirs := k
		theirs.query = k.peer
		p.requests = append(p.requests, theirs.requests(b, p.url, s))
		ours := rowsOf(b, checkAnswer(b, attestd, k.requests(b, attestd, s)[0]))
		if rows := rowsOf(b, checkAnswer(b, p.url, p.requests[len(p.requests)-1][0])); !reflect.DeepEqual(rows, ours) {
			b.Fatalf("%s: PostGraphile answers\n%v\nattestd\n%v", k.name, rows, ours)
		}
		load(b, p.url, func() time.Duration { return 0 }, p.requests[len(p.requests)-1], readConnections, 2*time.Second)
	}
}

// rowsOf returns the rows of an answer, without times, whose formats differ.
func rowsOf(b *testing.B, answer []byte) (rows []map[string]any) {
	var a struct {
		Data map[string][]map[string]any
	}
	if err := json.Unmarshal(answer, &a); err != nil {
		b.Fatal(err)
	}
	for _, list := range a.Data {
		rows = list
	}
	for _, row := range rows {
		traces, _ := row["traces"].([]any)
		for _, t := range traces {
			delete(t.(map[string]any), "timestamp")
		}
	}
	return rows
}

// fill copies the transfers, traces and tokens of a replica into the database.
func (p *postGraphile) fill(b *testing.B, path string) {
	p.server.Exec(b, "postgres", postGraphileSchema)
	opened, err := replica.Open(path, replica.Options{ReadOnly: true})
	if err != nil {
		b.Fatal(err)
	}
	defer opened.Close()
	db, err := pgx.Connect(b.Context(), p.server.URL("postgres"))
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close(context.Background())
	copyRows(b, db, opened, "token", index.TokenType, func(t index.Token, add func(...any)) {
		add(t.UniversalChainID, t.Denom)
	})
	copyRows(b, db, opened, "representation", index.TokenType, func(t index.Token, add func(...any)) {
		for i, r := range t.Representations {
			add(t.UniversalChainID, t.Denom, i, r.Name, r.Symbol, r.Decimals)
		}
	})
	copyRows(b, db, opened, "transfer", index.TransferType, func(t index.Transfer, add func(...any)) {
		add(t.SortOrder, t.PacketHash, t.SourceUniversalChainID, t.DestUniversalChainID, t.SenderCanonical,
			t.ReceiverCanonical, t.BaseToken, t.BaseTokenSymbol, t.BaseAmount, t.SendTransactionHash)
	})
	copyRows(b, db, opened, "trace", index.PacketType, func(t index.Packet, add func(...any)) {
		for i, trace := range t.Traces {
			add(t.PacketHash, i, trace.Type, trace.UniversalChainID, trace.TransactionHash, trace.Height,
				trace.Timestamp)
		}
	})
	p.server.Exec(b, "postgres", "VACUUM ANALYSE", "CHECKPOINT")
}

// copyRows adds rows to a table for each row of a type.
func copyRows[T any](b *testing.B, db *pgx.Conn, from *replica.Store, table string, t *index.Type,
	each func(row T, add func(...any))) {
	rows := make(chan []any, 1000)
	failed := make(chan error, 1)
	go func() {
		defer close(rows)
		failed <- from.View(b.Context(), func(snapshot index.Snapshot) error {
			return snapshot.Each(b.Context(), t, func(row index.Row) error {
				var decoded T
				if err := row.Decode(&decoded); err != nil {
					return err
				}
				each(decoded, func(values ...any) { rows <- values })
				return nil
			})
		})
	}()
	columns, err := db.Query(b.Context(), "SELECT column_name FROM information_schema.columns WHERE table_name = $1 "+
		"ORDER BY ordinal_position", table)
	if err != nil {
		b.Fatal(err)
	}
	names, err := pgx.CollectRows(columns, pgx.RowTo[string])
	if err != nil {
		b.Fatal(err)
	}
	_, err = db.CopyFrom(b.Context(), pgx.Identifier{table}, names, pgx.CopyFromFunc(func() ([]any, error) {
		return <-rows, nil
	}))
	if err != nil {
		b.Fatal(err)
	}
	if err := <-failed; err != nil {
		b.Fatal(err)
	}
}

// cpu returns the processor time of PostGraphile's processes and of the database's.
func (p *postGraphile) cpu(b testing.TB) time.Duration {
	sum := p.server.CPU() + cpuTime(b, p.pid)
	workers, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", p.pid, p.pid))
	if err != nil {
		b.Fatal(err)
	}
	for field := range bytes.FieldsSeq(workers) {
		pid, err := strconv.Atoi(string(field))
		if err != nil {
			b.Fatal(err)
		}
		sum += cpuTime(b, pid)
	}
	return sum
}
