//go:build packages

package packaging

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// chartValues are the least values that the chart accepts.
const chartValues = `
image: { tag: 1.0.0 }
pin: { secret: attestd-pin }
config:
  journal: { origin: example.com/log }
  hsm: { uri: "pkcs11:token=t;object=attestor?module-path=/lib/p.so&pin-source=file:/run/secrets/attestd/pin" }
`

// chartOfMembers are values of several appliances.
const chartOfMembers = chartValues + `
  store: { url: "postgres://attestd@db.example.com/attestd?passfile=/run/secrets/database/pgpass" }
replicas: 3
logKey: { secret: attestd-log-key }
database: { secret: attestd-database }
tls: { secret: attestd-tls }
hsm:
  env: [{ name: P11_KIT_SERVER_ADDRESS, value: "unix:path=/run/p11-kit/hsm" }]
  volumes: [{ name: p11-kit, hostPath: { path: /run/p11-kit, type: Directory } }]
  volumeMounts: [{ name: p11-kit, mountPath: /run/p11-kit }]
  limits: { vendor.example.com/hsm: 1 }
  supplementalGroups: [10002]
`

// manifest is the part of a rendered manifest that the tests read.
type manifest struct {
	Kind string
	Data map[string]string
	Spec struct {
		Replicas       int
		MaxUnavailable int
		Template       struct {
			Spec struct {
				Volumes        []struct{ Name string }
				InitContainers []struct{ Command []string }
				Containers     []struct {
					LivenessProbe, ReadinessProbe, StartupProbe struct {
						HTTPGet struct{ Path, Scheme string }
					}
					SecurityContext struct{ ReadOnlyRootFilesystem, AllowPrivilegeEscalation *bool }
					VolumeMounts    []struct{ Name, MountPath string }
					Resources       struct{ Limits map[string]string }
				}
			}
		}
	}
}

func TestTheChart(t *testing.T) {
	charts := buildCharts(t)
	t.Run("one appliance", func(t *testing.T) {
		manifests := render(t, charts, chartValues)
		kinds := make([]string, 0, len(manifests))
		for _, m := range manifests {
			kinds = append(kinds, m.Kind)
		}
		slices.Sort(kinds)
		if want := []string{"ConfigMap", "Service", "Service", "StatefulSet"}; !slices.Equal(kinds, want) {
			t.Errorf("kinds %v, want %v", kinds, want)
		}
	})
	t.Run("several", func(t *testing.T) {
		manifests := render(t, charts, chartOfMembers)
		if b := find(t, manifests, "PodDisruptionBudget"); b.Spec.MaxUnavailable != 1 {
			t.Errorf("the disruption budget: %+v", b.Spec)
		}
		set := find(t, manifests, "StatefulSet")
		pod := set.Spec.Template.Spec
		c := pod.Containers[0]
		if set.Spec.Replicas != 3 || c.Resources.Limits["vendor.example.com/hsm"] != "1" ||
			c.Resources.Limits["memory"] == "" {
			t.Errorf("%d replicas, limits %v", set.Spec.Replicas, c.Resources.Limits)
		}
		for path, probe := range map[string]struct{ Path, Scheme string }{
			"/healthz": c.LivenessProbe.HTTPGet, "/readyz": c.ReadinessProbe.HTTPGet,
		} {
			if probe.Path != path || probe.Scheme != "HTTPS" {
				t.Errorf("probe of %s: %+v", path, probe)
			}
		}
		if s := c.SecurityContext; s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem ||
			s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation {
			t.Error("the container may write to its root, or gain privileges")
		}
		for _, m := range c.VolumeMounts {
			if m.Name != "data" && !slices.ContainsFunc(pod.Volumes, func(v struct{ Name string }) bool { return v.Name == m.Name }) {
				t.Errorf("%s is mounted from no volume", m.MountPath)
			}
		}
		var config struct {
			Server struct{ TLS struct{ Cert, Key string } }
			Store  struct{ URL string }
		}
		if err := yaml.Unmarshal([]byte(find(t, manifests, "ConfigMap").Data["attestd.yaml"]), &config); err != nil ||
			config.Server.TLS.Key != "/run/secrets/tls/tls.key" || config.Store.URL == "" {
			t.Errorf("the configuration: %v %+v", err, config)
		}
	})
	t.Run("a rotated log key stays", func(t *testing.T) {
		pod := find(t, render(t, charts, chartOfMembers), "StatefulSet").Spec.Template.Spec
		if len(pod.InitContainers) != 1 {
			t.Fatalf("%d init containers", len(pod.InitContainers))
		}
		secrets, data := t.TempDir(), t.TempDir()
		inSecret, inData := filepath.Join(secrets, "log.key"), filepath.Join(data, "log.key")
		command := slices.Clone(pod.InitContainers[0].Command)
		for i, word := range command {
			command[i] = strings.NewReplacer("/run/secrets/log", secrets, "/var/lib/attestd", data).Replace(word)
		}
		for _, step := range []struct{ secret, has, want string }{
			{"first", "", "first"}, {"first", "rotated", "rotated"}, {"second", "rotated", "rotated"},
		} {
			if err := os.WriteFile(inSecret, []byte(step.secret), 0o600); err != nil {
				t.Fatal(err)
			}
			if step.has != "" {
				_ = os.Remove(inData)
				if err := os.WriteFile(inData, []byte(step.has), 0o400); err != nil {
					t.Fatal(err)
				}
			}
			if out, err := exec.CommandContext(t.Context(), command[0], command[1:]...).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			got, err := os.ReadFile(inData)
			if stat, failed := os.Stat(inData); err != nil || failed != nil || string(got) != step.want ||
				stat.Mode().Perm() != 0o400 {
				t.Errorf("with %q in the Secret and %q in the volume: %q, %v", step.secret, step.has, got, err)
			}
		}
	})
	for name, c := range map[string]struct{ values, says string }{
		"no image":              {strings.Replace(chartValues, "tag: 1.0.0", "", 1), "set image.tag"},
		"no PIN":                {strings.Replace(chartValues, "secret: attestd-pin", "", 1), "set pin.secret"},
		"two without database":  {chartValues + "replicas: 2\n", "set config.store.url"},
		"two without a log key": {strings.Replace(chartOfMembers, "logKey: { secret: attestd-log-key }", "", 1), "set logKey.secret"},
	} {
		t.Run(name, func(t *testing.T) {
			if out, err := tryRender(t, charts, c.values); err == nil || !strings.Contains(out, c.says) {
				t.Errorf("%v, not %q: %s", err, c.says, out)
			}
		})
	}
}

func TestTheComposeFile(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), buildCharts(t), "compose", "compose.yaml")
	cmd.Env = append(os.Environ(), "ATTESTD_IMAGE=localhost/attestd:1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var project struct {
		Services map[string]struct {
			Image     string
			Ports     []struct{ Host_IP, Published string } //nolint:revive // the names of the file
			DependsOn map[string]struct{ Condition string } `json:"depends_on"`
		}
	}
	if err := json.Unmarshal(out, &project); err != nil {
		t.Fatal(err)
	}
	attestd := project.Services["attestd"]
	if attestd.Image != "localhost/attestd:1" || attestd.DependsOn["setup"].Condition != "service_completed_successfully" ||
		len(attestd.Ports) != 1 || attestd.Ports[0].Host_IP != "127.0.0.1" {
		t.Errorf("the service: %+v", attestd)
	}
}

// buildCharts builds the command that renders and checks the files for containers. It is a module of its own, so that
// the libraries of Helm and Kubernetes are not among attestd's.
func buildCharts(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "charts")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", path, ".")
	build.Dir = filepath.Join("testdata", "charts")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return path
}

func tryRender(t *testing.T, charts, values string) (string, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(file, []byte(values), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), charts, "helm", "helm/attestd", file).CombinedOutput()
	return string(out), err
}

func render(t *testing.T, charts, values string) []manifest {
	t.Helper()
	out, err := tryRender(t, charts, values)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var manifests []manifest
	for line := range strings.Lines(out) {
		var m manifest
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		manifests = append(manifests, m)
	}
	return manifests
}

func find(t *testing.T, manifests []manifest, kind string) manifest {
	t.Helper()
	i := slices.IndexFunc(manifests, func(m manifest) bool { return m.Kind == kind })
	if i < 0 {
		t.Fatalf("no %s", kind)
	}
	return manifests[i]
}
