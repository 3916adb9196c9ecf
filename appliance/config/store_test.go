package config_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/attestd/attestd/appliance/config"
)

func TestAPasswordOfTheDatabaseIsNotShown(t *testing.T) {
	for url, want := range map[string]string{
		"postgres://attestd@db/attestd":                              "postgres://attestd@db/attestd",
		"postgres://attestd:swordfish@db:5432/attestd":               "postgres://attestd:xxxxx@db:5432/attestd",
		"postgres://attestd:swordfish@a:5432,b:5433/attestd":         "postgres://attestd:xxxxx@a:5432,b:5433/attestd",
		"postgres://a:5432,b:5433/attestd":                           "postgres://a:5432,b:5433/attestd",
		"postgres:///attestd?host=/run/postgresql&user=a":            "postgres:///attestd?host=/run/postgresql&user=a",
		"postgres:///attestd?user=a&password=swordfish&sslmode=x":    "postgres:///attestd?user=a&password=xxxxx&sslmode=x",
		"postgres:///attestd?pass%77ord=swordfish":                   "postgres:///attestd?pass%77ord=xxxxx",
		"postgres:///attestd?sslpassword=swordfish":                  "postgres:///attestd?sslpassword=xxxxx",
		"postgres://attestd:sword/fish@db/attestd":                   "postgres://attestd:xxxxx@db/attestd",
		"postgres://attestd:sword@fish@db/attestd":                   "postgres://attestd:xxxxx@db/attestd",
		"postgres://attestd:sword?fish@db/attestd":                   "postgres://attestd:xxxxx@db/attestd",
		"postgresql://attestd:swordfish@db/attestd?sslmode=disable":  "postgresql://attestd:xxxxx@db/attestd?sslmode=disable",
		"postgres://attestd:swordfish@db/attestd?options=-c%20a%3Db": "postgres://attestd:xxxxx@db/attestd?options=-c%20a%3Db",
	} {
		u := config.DatabaseURL(url)
		if got := fmt.Sprint(u); got != want {
			t.Errorf("%s is shown as %s, want %s", url, got, want)
		}
		if bare := u.WithoutPassword(); bare.HasPassword() || strings.Contains(string(bare), "fish") || want == url &&
			bare != u {
			t.Errorf("%s without its password is %s", url, bare)
		}
		if got := u.HasPassword(); got != (url != want) {
			t.Errorf("%s has a password: %v", url, got)
		}
	}
}

func TestWhatIsNoDatabaseIsRefusedWithoutItsPassword(t *testing.T) {
	none := config.Source{File: os.DevNull}
	for url, want := range map[string]string{
		"mysql://attestd:swordfish@db/attestd":    "must be a URL such as postgres://",
		"host=db password=swordfish":              "must be a URL such as postgres://",
		"postgres://attestd:xxxxx@db/attestd":     "has the placeholder of attestd config show",
		"/var/lib/attestd/swordfish":              "must be a URL such as postgres://",
		"postgres:///attestd?password=xxxxx&a=b":  "has the placeholder of attestd config show",
		"postgresql://attestd:xxxxx@/x?swordfish": "has the placeholder of attestd config show",
	} {
		_, err := none.Load(map[string]any{"store.url": url})
		if err == nil || !strings.Contains(err.Error(), "store.url: ") || !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), "swordfish") {
			t.Errorf("%s: %v", url, err)
		}
	}
}

func TestTheDaemonsURLIsTheOwnersForAnotherUser(t *testing.T) {
	for url, want := range map[string]config.DatabaseURL{
		"postgres://postgres@db:5432/attestd":                        "postgres://attestd@db:5432/attestd",
		"postgres://postgres:swordfish@a:5432,b:5433/attestd":        "postgres://attestd@a:5432,b:5433/attestd",
		"postgres://db/attestd?sslmode=verify-full&sslrootcert=/a@b": "postgres://attestd@db/attestd?sslmode=verify-full&sslrootcert=/a@b",
		"postgres:///attestd?host=/run/postgresql&user=postgres":     "postgres://attestd@/attestd?host=/run/postgresql",
		"postgres://db?password=swordfish&user=postgres":             "postgres://attestd@db",
	} {
		if got, err := config.DatabaseURL(url).As("attestd"); got != want || err != nil {
			t.Errorf("%s: %s, %v, want %s", url, got, err, want)
		}
	}
}

func TestAURLNamesOnePassfile(t *testing.T) {
	for url, want := range map[string]config.DatabaseURL{
		"postgres://a@db/attestd":                                "postgres://a@db/attestd?passfile=/etc/a%26b",
		"postgres://a@db/attestd?passfile=/root/x&sslrootcert=y": "postgres://a@db/attestd?sslrootcert=y&passfile=/etc/a%26b",
	} {
		if got := config.DatabaseURL(url).WithPassfile("/etc/a&b"); got != want {
			t.Errorf("%s: %s, want %s", url, got, want)
		}
	}
}
