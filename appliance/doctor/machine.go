package doctor

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/daemon"
	"github.com/attestd/attestd/appliance/files"
	"github.com/attestd/attestd/appliance/health"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/service"
	"github.com/attestd/attestd/appliance/text"
	"github.com/attestd/attestd/hsm/softhsm"
)

// upstreamPatience bounds the wait for one answer of the upstream.
const upstreamPatience = 10 * time.Second

// checkFollowing sends the upstream one small query, and asks the daemon for its follower's progress.
func checkFollowing(ctx context.Context, p *subject) []Finding {
	if !p.config.AsksUpstream() {
		return nil
	}
	findings := []Finding{p.reachUpstream(ctx)}
	status, err := p.replicaStatus(ctx)
	if !p.config.Follows() || err != nil { // checkReplica reports the error
		return findings
	}
	if p.running() {
		findings = append(findings, p.follower()...)
	}
	waiting := uint64(0)
	if f := status.Follower; f != nil {
		waiting = f.Waiting
		if f.ChainError != "" {
			findings = append(findings, warn("check rpcs and core in indexer.chains; attestd retries automatically",
				"packets cannot be checked against their chains, and %d rows wait: %s", waiting,
				text.OneLine(f.ChainError)))
		}
	}
	if status.Unverified > waiting {
		findings = append(findings, warn("list them, with the next steps: attestd replica verify",
			"%d of its records fail verification and are quarantined", status.Unverified-waiting))
	}
	return findings
}

func (p *subject) reachUpstream(ctx context.Context) Finding {
	address := p.config.UpstreamShown()
	upstream, err := daemon.OpenUpstream(p.config, p.Version, nil)
	if err != nil {
		return warn(asRoot+"; only the daemon can read a credential of the service", "not queried: %s", err)
	}
	ctx, cancel := context.WithTimeout(ctx, upstreamPatience)
	defer cancel()
	began := time.Now()
	if _, err := upstream.Query(ctx, "{ __typename }", nil); err != nil {
		const remedy = "check graphql.upstream, graphql.upstream_headers and the network"
		if p.config.GraphQL.Source == config.FromProxy {
			return fail(remedy, "%s: %s", address, text.OneLine(err.Error()))
		}
		return warn(remedy+"; until then, attestd answers from the replica", "%s: %s", address,
			text.OneLine(err.Error()))
	}
	return ok("%s answers in %s", address, time.Since(began).Round(time.Millisecond))
}

// follower returns the daemon's findings on its follower.
func (p *subject) follower() []Finding {
	if found := p.told("upstream"); len(found) > 0 {
		return found
	}
	return []Finding{warn("systemctl restart attestd",
		"the daemon does not follow the upstream: graphql.upstream was set after the daemon started")}
}

func checkClock(ctx context.Context, p *subject) []Finding {
	const remedy = "set the clock, and synchronise it: systemctl enable --now systemd-timesyncd (or chrony)"
	now := time.Now()
	if now.Year() < 2025 || now.Year() > 2100 {
		return []Finding{fail(remedy, "the clock is wrong: it says %s", text.Time(now))}
	}
	if newest := p.newestRecord(ctx); newest != nil && newest.Time.After(now.Add(time.Second)) {
		last := newest.Time
		const wasWrong = "; if the clock is right now, it was wrong when that record was written: wait, or raise journal.max_ahead, " +
			"so that new records get that time until then"
		state := "new records get that time until the clock reaches it"
		if last.Sub(now) > p.config.Journal.MaxAhead {
			state = "attestd does not sign until the clock is within journal.max_ahead (" +
				p.config.Journal.MaxAhead.String() + ") of it"
		}
		return []Finding{fail(remedy+wasWrong, "the clock says %s, which is before the journal's last record of %s: %s",
			text.Time(now), text.Time(last), state)}
	}
	synchronised, within, err := daemon.ClockIsSynchronised()
	switch {
	case errors.Is(err, fs.ErrPermission): // inside the service's sandbox (ProtectClock=)
		return []Finding{warn(asRoot, "the service's sandbox hides whether the clock is synchronised; it says %s",
			text.Time(now))}
	case err != nil:
		return []Finding{warn(remedy, "unknown whether the clock is synchronised: %s", err)}
	case !synchronised:
		return []Finding{warn(remedy, "not synchronised; it says %s", text.Time(now))}
	}
	return []Finding{ok("synchronised, within %s", within.Round(time.Millisecond))}
}

// newestRecord returns the journal's newest attestation. It is nil if the journal is empty or cannot be read.
func (p *subject) newestRecord(ctx context.Context) *appliance.Record {
	var entries []journal.Entry
	query := journal.Query{Limit: 1, AttestationsOnly: true}
	if _, err := p.commit(ctx); err != nil {
		return nil
	}
	if p.running() {
		daemon := client.NewAdmin(p.config.Admin.Socket)
		entries, _ = daemon.Records(ctx, query)
		_ = daemon.Close()
	} else if store, err := daemon.ReadStore(p.config); err == nil {
		entries, _ = store.Journal.List(ctx, query)
		_ = store.Close()
	}
	if len(entries) == 0 {
		return nil
	}
	return &entries[0].Record
}

// existingFolder returns dir, or its nearest existing parent, which is on the disk where dir will be created.
func existingFolder(dir string) string {
	for !files.Exists(dir) && dir != filepath.Dir(dir) {
		dir = filepath.Dir(dir)
	}
	return dir
}

func checkDiskSpace(_ context.Context, p *subject) []Finding {
	dir := existingFolder(p.config.DataDir)
	free, total, err := daemon.DiskSpace(dir)
	if err != nil {
		return []Finding{fail("data_dir must be on a disk of this machine", "%s: %s", dir, err)}
	}
	return []Finding{health.Disk(dir, free, total, int64(p.config.Journal.MinFree))}
}

// volatileDisk names file systems on which synced data may be lost, by f_type of statfs(2).
func volatileDisk(kind int64) (name string, volatile bool) {
	switch kind {
	case unix.TMPFS_MAGIC, unix.RAMFS_MAGIC:
		return "memory (tmpfs)", true
	case unix.NFS_SUPER_MAGIC:
		return "NFS", true
	case unix.SMB_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC, unix.CIFS_SUPER_MAGIC:
		return "SMB", true
	case unix.V9FS_MAGIC:
		return "9p", true
	case unix.FUSE_SUPER_MAGIC:
		return "FUSE", true
	}
	return "", false
}

// slowSync is the sync time that clients begin to notice: every attestation waits for a sync, which others may share.
const slowSync = 50 * time.Millisecond

func checkDiskSync(ctx context.Context, p *subject) []Finding {
	const remedy = "keep data_dir on a local disk with a journaling file system: ext4 or XFS on an SSD"
	dir := existingFolder(p.config.DataDir)
	var findings []Finding
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err == nil {
		if name, volatile := volatileDisk(int64(s.Type)); volatile {
			findings = append(findings, warn(remedy,
				"%s is on %s: synced writes may not survive a power cut, and file locks may not work", dir, name))
		}
	}
	measured, err := p.MeasureSync(ctx)
	took := measured.Took
	switch {
	case err != nil:
		findings = append(findings, fail("the disk or its controller does not answer; read the kernel's log: dmesg",
			"the disk of %s hangs: %s", dir, err))
	case measured.Forbidden:
		findings = append(findings, warn(asRoot, "not measured: %s", measured.Failure))
	case measured.Failure != "":
		findings = append(findings,
			fail("read the kernel's log: dmesg; mount a working disk there, then: attestd restore FILE",
				"the disk refuses writes: %s", measured.Failure))
	case took > slowSync:
		findings = append(findings,
			warn(remedy, "a write and its sync take %s; each attestation waits for one", took.Round(time.Millisecond)))
	default:
		findings = append(findings, ok("a write and its sync take %s", took.Round(10*time.Microsecond)))
	}
	return findings
}

// MeasureSync measures in the data_dir of a configuration, as its owner.
func MeasureSync(c *config.Config) (s SyncTime) {
	dir := existingFolder(c.DataDir)
	user, err := service.UserOf(c.DataDir)
	if err == nil {
		err = user.In(dir).Do(func() (err error) {
			s.Took, err = measureSync(dir)
			return err
		})
	}
	if err != nil {
		s.Failure, s.Forbidden = err.Error(), errors.Is(err, fs.ErrPermission)
	}
	return s
}

// measureSync returns the median time of nine writes of a 4 KiB page, each with its sync.
func measureSync(dir string) (time.Duration, error) {
	f, err := os.CreateTemp(dir, ".attestd-doctor-*")
	if err != nil {
		return 0, err
	}
	defer func() { _ = os.Remove(f.Name()) }()
	defer f.Close()
	page := make([]byte, 4096)
	var times []time.Duration
	for i := range 9 {
		began := time.Now()
		if _, err := f.WriteAt(page, int64(i*len(page))); err != nil {
			return 0, err
		}
		if err := f.Sync(); err != nil {
			return 0, err
		}
		times = append(times, time.Since(began))
	}
	slices.Sort(times)
	return times[len(times)/2], nil
}

// permissionRule is a file with its allowed permissions.
type permissionRule struct {
	what, path string
	most       fs.FileMode // any further permission is a fault
	owned      bool        // must belong to the service's user
	readable   bool        // the service's user must be able to read it
	state      State       // of the finding if other users have permissions
}

func (p *subject) guardedFiles() []permissionRule {
	data := p.config.DataDir
	configuration := permissionRule{what: "configuration", path: p.Source.Path(), most: 0o755, readable: true,
		state: Fail}
	if slices.ContainsFunc(p.config.GraphQL.UpstreamHeaders, func(h config.Header) bool { return !h.Kept() }) {
		configuration.most = 0o640 // it holds a header that may be a secret
	}
	files := []permissionRule{
		configuration,
		{what: "data_dir", path: data, most: 0o700, owned: true, readable: true, state: Warn},
	}
	for _, s := range daemon.Secrets(p.config) { // attestd does not start if other users can read one
		files = append(files,
			permissionRule{what: s.Name, path: s.Path, most: s.Most, owned: s.Most == 0o600, readable: true,
				state: Fail})
	}
	t := p.config.Server.TLS
	for _, f := range []permissionRule{
		{what: "TLS certificate", path: t.Cert, most: 0o755, readable: true, state: Warn},
		{what: "TLS client CA", path: t.ClientCA, most: 0o755, readable: true, state: Warn},
		{what: "upstream's CA", path: p.config.GraphQL.UpstreamCA, most: 0o755, readable: true, state: Warn},
	} {
		if f.path != "" {
			files = append(files, f)
		}
	}
	for _, h := range p.config.GraphQL.UpstreamHeaders {
		if path, err := daemon.HeaderFile(h); err == nil && path != "" {
			files = append(files,
				permissionRule{what: "header " + h.Name, path: path, most: 0o640, readable: true, state: Fail})
		}
	}
	return append(files, p.softHSMFiles()...)
}

// softHSMFiles are the files of SoftHSM's tokens, if SoftHSM is configured. The daemon cannot read a token file that
// root created by mistake.
func (p *subject) softHSMFiles() (files []permissionRule) {
	conf := p.Source.Getenv(softhsm.ConfVariable)
	if conf == "" || !softhsm.IsModule(p.hsm.Module.Path) {
		return nil
	}
	files = append(files,
		permissionRule{what: "SoftHSM's configuration", path: conf, most: 0o755, readable: true, state: Fail})
	tokens := softhsm.TokenDir(conf)
	if tokens == "" {
		return files
	}
	_ = filepath.WalkDir(tokens, func(path string, d fs.DirEntry, err error) error {
		if err == nil && (path == tokens || !d.IsDir()) {
			most := fs.FileMode(0o600)
			if d.IsDir() {
				most = 0o700
			}
			files = append(files,
				permissionRule{what: "SoftHSM's tokens", path: path, most: most, owned: true, readable: true,
					state: Warn})
		}
		return nil // the module reports unreadable files
	})
	return files
}

func checkFiles(_ context.Context, p *subject) []Finding {
	var faults []Finding
	looked := 0
	for _, g := range p.guardedFiles() {
		stat, err := os.Stat(g.path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the checks that need the file report it
		}
		looked++
		if err != nil {
			faults = append(faults, warn(asRoot, "%s: %s", g.what, err))
			continue
		}
		if f, found := p.checkPermissions(g, stat); found {
			faults = append(faults, f)
		}
	}
	if len(faults) == 0 {
		return []Finding{ok("%d files and folders have the right owner and mode", looked)}
	}
	return faults
}

// checkPermissions compares a file's mode and owner with the allowed ones.
func (p *subject) checkPermissions(g permissionRule, stat fs.FileInfo) (Finding, bool) {
	owner := stat.Sys().(*syscall.Stat_t)
	mode := stat.Mode().Perm()
	if stat.IsDir() && g.most == 0o600 {
		g.most = 0o700
	}
	path := text.ShellWord(g.path)
	switch {
	case mode&^g.most&0o077 != 0:
		most := mode & g.most
		return Finding{State: g.state, Remedy: fmt.Sprintf("chmod %04o %s", most, path),
			Detail: fmt.Sprintf("%s: %s has mode %04o: other users have access", g.what, g.path, mode)}, true
	case g.owned && owner.Uid != p.service.UID:
		return fail(fmt.Sprintf("chown %s: %s", p.service.Name, path),
			"%s: %s belongs to user %d, not to the daemon's user %s", g.what, g.path, owner.Uid, p.service.Name), true
	case g.readable && !p.service.Reads(owner, mode):
		return fail(fmt.Sprintf("chown %s: %s", p.service.Name, path),
			"%s: %s is not readable for the daemon's user %s", g.what, g.path, p.service.Name), true
	}
	return Finding{}, false
}

func checkPorts(ctx context.Context, p *subject) []Finding {
	var findings []Finding
	for _, at := range []struct{ name, address string }{
		{"server.listen", p.config.Server.Listen}, {"metrics.listen", p.config.Metrics.Listen},
		{"console.listen", p.config.Console.Listen},
	} {
		if at.address != "" {
			findings = append(findings, p.checkPort(ctx, at.name, at.address))
		}
	}
	return findings
}

func (p *subject) checkPort(ctx context.Context, name, address string) Finding {
	if p.running() && name == "server.listen" && !listening(ctx, address) {
		if p.socket.active {
			return ok("%s %s: not used, because attestd.socket is active", name, address)
		}
		return warn("systemctl restart attestd", "%s %s: the daemon was started with another address", name, address)
	}
	if p.running() {
		return ok("%s %s: held by the daemon", name, address)
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	switch {
	case errors.Is(err, syscall.EADDRINUSE) && name == "server.listen" && p.socket.active:
		return ok("%s %s: held by attestd.socket", name, address)
	case errors.Is(err, syscall.EADDRINUSE):
		return fail("find the program (ss -ltnp) and stop it, or change "+name, "%s %s: in use by another program",
			name, address)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fail("change "+name, "%s %s: not an address of this machine", name, address)
	case err != nil && !errors.Is(err, syscall.EACCES):
		return fail("change "+name, "%s %s: %s", name, address, err)
	}
	if err == nil {
		_ = l.Close()
	}
	if _, port, _ := config.SplitPort(address); privileged(port) && !p.service.IsRoot() {
		return warn("let systemd listen: systemctl enable attestd.socket && systemctl restart attestd",
			"%s %s: the user %s may not listen on this port", name, address, p.service.Name)
	}
	return ok("%s %s: free", name, address)
}

// Listening reports whether a program other than systemd, for attestd.socket, accepts connections on the address.
func Listening(ctx context.Context, address string) bool {
	return !askSystemd(ctx).active && listening(ctx, address)
}

// listening reports whether the address accepts connections.
func listening(ctx context.Context, address string) bool {
	c, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", address)
	if err != nil {
		return false
	}
	_ = c.Close()
	return true
}

// privileged reports whether only root may listen on a port.
func privileged(port string) bool {
	n, err := strconv.Atoi(port)
	first := 1024
	if text, readErr := os.ReadFile("/proc/sys/net/ipv4/ip_unprivileged_port_start"); readErr == nil {
		if v, parseErr := strconv.Atoi(strings.TrimSpace(string(text))); parseErr == nil {
			first = v
		}
	}
	return err == nil && n > 0 && n < first
}

func checkCertificate(_ context.Context, p *subject) []Finding {
	files := p.config.Server.TLS
	if files.Cert == "" {
		open := p.openAddresses()
		switch at := strings.Join(open, ", "); {
		case len(open) > 0 && !p.config.Server.AllowPlainHTTP:
			return []Finding{fail(daemon.PlainHTTPRemedy+"; then: systemctl restart attestd",
				"none: the API would be plain HTTP on %s, and API keys would cross the network unencrypted: attestd does not start", at)}
		case len(open) > 0:
			return []Finding{warn("use this only behind a proxy that terminates TLS, on a separate network",
				"none: the API is plain HTTP on %s, and API keys cross the network unencrypted (server.allow_plain_http)", at)}
		}
		return []Finding{ok("none: the API is plain HTTP, on this machine only")}
	}
	pair, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	if err != nil {
		return []Finding{fail("set server.tls.cert and server.tls.key to a certificate chain and its key, in PEM", "%s",
			err)}
	}
	leaf, now := pair.Leaf, time.Now()
	if now.Before(leaf.NotBefore) {
		return []Finding{fail("wait, or correct the clock", "not valid before %s", text.Time(leaf.NotBefore))}
	}
	found := health.Certificate(leaf.NotAfter, now)
	if found.State == OK {
		found.Detail = fmt.Sprintf("for %s, until %s", names(leaf), text.Time(leaf.NotAfter))
	}
	return []Finding{found}
}

// names lists the host names and addresses of a certificate.
func names(c *x509.Certificate) string {
	all := slices.Clone(c.DNSNames)
	for _, ip := range c.IPAddresses {
		all = append(all, ip.String())
	}
	if len(all) == 0 {
		return c.Subject.String()
	}
	return strings.Join(all, ", ")
}
