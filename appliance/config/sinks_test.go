package config_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance/config"
)

const twoSinks = `
audit:
  sinks:
    - name: siem
      type: syslog
      url: tls://siem.example.com:6514
      timeout: 10s
    - {name: copy, type: file, path: /var/log/attestd/audit.jsonl, batch_bytes: 64KiB}
`

func TestSinksHaveDefaultsAndAreShownAsTheyAre(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "attestd.yaml")
	c, err := load(t, path, []byte(twoSinks))
	if err != nil {
		t.Fatal(err)
	}
	siem, file := c.Audit.Sinks[0], c.Audit.Sinks[1]
	if siem.Name != "siem" || siem.Timeout != 10*time.Second || siem.Interval != time.Second ||
		siem.Redact != "addresses" || siem.Batch != 1000 {
		t.Errorf("%+v", siem)
	}
	if file.Type != config.SinkFile || file.BatchBytes != 64<<10 || file.Timeout != 30*time.Second {
		t.Errorf("%+v", file)
	}
	var shown bytes.Buffer
	config.WriteYAML(&shown, c.Values())
	again, err := load(t, path, shown.Bytes())
	if err != nil {
		t.Fatalf("%v\n%s", err, shown.Bytes())
	}
	if names := c.Differing(again); len(names) > 0 {
		t.Errorf("%v differ", names)
	}
	again.Audit.Sinks[1].Batch++
	if names := c.Differing(again); len(names) != 1 || names[0] != "audit.sinks" {
		t.Errorf("%v differ, want audit.sinks", names)
	}
}

func TestSinksInTheEnvironmentAreJSON(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`[{"name": "copy", "type": "file", "path": "/copy", "batch": 7}]`: "",
		"":                 "",
		`{"name": "copy"}`: "environment: ATTESTD_AUDIT_SINKS is not a JSON list of objects",
		`[1]`:              "audit.sinks: entry 1: is not an object",
	} {
		c, err := (&config.Source{File: os.DevNull, Environ: []string{"ATTESTD_AUDIT_SINKS=" + text}}).Load(nil)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
		if err == nil && text != "" && c.Audit.Sinks[0].Batch != 7 {
			t.Errorf("%+v", c.Audit.Sinks)
		}
	}
}

// Each error names the entry and the value at fault, and none reveals a secret.
func TestMistakesInSinksAreNamed(t *testing.T) {
	t.Parallel()
	for sink, want := range map[string]string{
		`{name: a, type: syslog, url: "tls://h:6514"}`:                                      "",
		`{name: a, type: syslog, url: "tls://h"}`:                                           "",
		`{name: a, type: syslog, url: "tcp://127.0.0.1:514", format: cef}`:                  "",
		`{name: a, type: https, url: "http://[::1]:8088/raw?channel=1"}`:                    "",
		`{name: a, type: https, url: "https://h/raw", headers: ["Authorization: file:/t"]}`: "",
		`{name: a, type: https, url: "https://h/raw", headers: ["Authorization: s3cret"]}`:  "entry 1: headers: Authorization: must not contain the value",
		`{name: a, type: https, url: "https://u:s3cret@h/raw"}`:                             "entry 1: url: must have no user",
		`{name: a, type: https, url: "http://h/raw"}`:                                       "url: http:// is unencrypted and allowed on this machine only",
		`{name: a, type: syslog, url: "tcp://10.0.0.1:514"}`:                                "url: tcp:// is unencrypted and allowed on this machine only",
		`{name: a, type: syslog, url: "udp://127.0.0.1:514"}`:                               "url: must be like tls://siem.example.com",
		`{name: a, type: syslog, url: "tls://h:1/path"}`:                                    "must end after the host and the port",
		`{name: a, type: syslog, url: "tls://h:1", headers: ["a: file:/b"]}`:                "headers and gzip are for type https",
		`{name: a, type: https, url: "https://h", format: cef}`:                             "format: must be json for type https",
		`{name: a, type: file, path: relative}`:                                             `path: "relative" is not an absolute path`,
		`{name: a, type: file, path: /a, url: "tls://h"}`:                                   "but not url",
		`{name: a, type: udp, url: "tls://h"}`:                                              `type: "udp" is not syslog, https or file`,
		`{name: A b, type: file, path: /a}`:                                                 `name: "A b" is not a name`,
		`{name: a, type: file, path: /a}, {name: a, type: file, path: /b}`:                  "entry 2: name: a is another sink's",
		`{name: a, type: file, pth: /a}`:                                                    `entry 1: no setting "pth"; did you mean path?`,
		`{name: a, type: file, path: /a, timeout: 30}`:                                      "entry 1: timeout: 30 is not a duration",
		`{name: a, type: file, path: /a, start: 5}`:                                         "start: 5 is not text",
		`{name: a, type: file, path: /a, batch: 0}`:                                         "batch: must be 1 to",
		`{name: a, type: https, url: "https://h", cert: /c}`:                                "set cert and key together",
	} {
		_, err := load(t, filepath.Join(t.TempDir(), "attestd.yaml"), []byte("audit:\n  sinks: ["+sink+"]\n"))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", sink, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: the secret is told: %v", sink, err)
		}
	}
}
