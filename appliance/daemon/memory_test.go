package daemon

import (
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/attestd/attestd/appliance/config"
)

func TestTheHeapStaysBelowWhatTheServiceManagerGrants(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	var c config.Config
	c.GraphQL.CacheSize, c.GraphQL.AnswerMemory = 64*mib, 64*mib
	for name, test := range map[string]struct {
		files map[string]string // of the control group
		group string            // as of /proc/self/cgroup
		want  int64
	}{
		"high": {map[string]string{"a/b/memory.high": "268435456\n", "a/b/memory.max": "max\n"},
			"0::/a/b\n", 192 * mib},
		"max": {map[string]string{"a/b/memory.high": "max\n", "a/b/memory.max": "134217728\n"},
			"0::/a/b\n", 96 * mib},
		"plenty": {map[string]string{"a/b/memory.high": "8589934592\n"}, "0::/a/b\n", 320 * mib},
		"no limit": {map[string]string{"a/b/memory.high": "max\n", "a/b/memory.max": "max\n"}, "0::/a/b\n",
			320 * mib},
		"of a container":     {map[string]string{"memory.max": "268435456\n"}, "0::/\n", 192 * mib},
		"older groups, too":  {map[string]string{"a/memory.high": "268435456\n"}, "4:memory:/x\n0::/a\n", 192 * mib},
		"no groups":          {nil, "", 320 * mib},
		"nothing to be read": {map[string]string{"a/memory.high": "much\n"}, "0::/a\n", 320 * mib},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			self := filepath.Join(root, "self")
			write := func(file, text string) {
				t.Helper()
				if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			write(self, test.group)
			for file, text := range test.files {
				write(filepath.Join(root, file), text)
			}
			if got := heapLimit(heapOf(&c), groupLimit(root, self)); got != test.want {
				t.Errorf("%d MiB, want %d", got/mib, test.want/mib)
			}
		})
	}
	if groupLimit(t.TempDir(), "/does/not/exist") != math.MaxInt64 {
		t.Error("a limit where there are no groups")
	}
}
