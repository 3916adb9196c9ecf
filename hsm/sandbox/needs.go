package sandbox

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/attestd/attestd/hsm/softhsm"
)

// needs are a vendor library's requirements beyond the files of the system.
type needs struct {
	name    string // a part of the library's file name
	network Network
	paths   []string // paths that it reads and, as far as the user may, writes
}

// known lists the libraries with known needs. Of these, only SoftHSM, p11-kit and openCryptoki are part of attestd's
// tests.
func known() []needs {
	return []needs{
		{"softhsm", None, nil},
		{"p11-kit-client", Unix, nil},
		{"opencryptoki", Unix, []string{
			"/etc/opencryptoki", "/var/lib/opencryptoki", "/run/opencryptoki", "/run/pkcsslotd.socket",
			"/run/lock/opencryptoki",
			"/var/log/opencryptoki", "/dev/shm",
		}},
		{"libCryptoki2", Any, []string{"/etc/Chrystoki.conf", "/usr/safenet"}},
		{"libcloudhsm", Any, []string{"/opt/cloudhsm"}},
		{"libcknfast", Any, []string{"/opt/nfast"}},
		{"yubihsm", Any, nil},
	}
}

// needsOf returns the needs of a library by its name. An unknown library only needs the network.
func needsOf(library string) needs {
	all := known()
	i := slices.IndexFunc(all, func(n needs) bool { return strings.Contains(filepath.Base(library), n.name) })
	if i < 0 {
		return needs{network: Any}
	}
	return all[i]
}

// libraryPaths returns the existing paths that a library needs, or that the environment names for it.
func libraryPaths(library string) []string {
	paths := append(needsOf(library).paths, os.Getenv("YUBIHSM_PKCS11_CONF"), os.Getenv("ChrystokiConfigurationPath"))
	paths = append(append(paths, softHSMPaths(library)...), p11kitPaths()...)
	return slices.DeleteFunc(paths, func(path string) bool {
		// also for a relative path: SoftHSM resolves it from the folder in which attestd was started
		_, err := os.Stat(path)
		return path == "" || err != nil
	})
}

// softHSMPaths returns SoftHSM's configuration (softhsm2.conf(5)) and the folder of its tokens.
func softHSMPaths(library string) []string {
	if conf := os.Getenv(softhsm.ConfVariable); conf != "" {
		return []string{conf, softhsm.TokenDir(conf)}
	}
	if !softhsm.IsModule(library) {
		return nil
	}
	var paths []string
	for _, conf := range []string{"/etc/softhsm/softhsm2.conf", "/etc/softhsm2.conf"} {
		paths = append(paths, conf, softhsm.TokenDir(conf))
	}
	return paths
}

// p11kitPaths returns the socket of the p11-kit server, "unix:path=PATH" (p11-kit(8)).
func p11kitPaths() (paths []string) {
	for address := range strings.SplitSeq(os.Getenv("P11_KIT_SERVER_ADDRESS"), ";") {
		if path, is := strings.CutPrefix(address, "unix:path="); is {
			paths = append(paths, path)
		}
	}
	return paths
}

// systemPaths are the paths that the C library and OpenSSL read. None of them holds a secret of attestd.
func systemPaths() []string {
	paths := []string{"/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin"}
	for _, name := range []string{
		"ld.so.cache", "ld.so.conf", "ld.so.conf.d", "ld.so.preload", "localtime", "timezone", "locale.alias",
		"os-release", "machine-id",
		"passwd", "group", "nsswitch.conf", "host.conf", "hosts", "hostname", "resolv.conf", "gai.conf", "services",
		"protocols", "networks",
		"ssl/openssl.cnf", "ssl/certs", "pki/tls/openssl.cnf", "pki/tls/openssl.d", "pki/tls/certs", "pki/tls/cert.pem",
		"pki/ca-trust",
		"crypto-policies", "gnutls", "pkcs11",
	} {
		paths = append(paths, "/etc/"+name)
	}
	return append(paths, "/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/filesystems",
		"/proc/version", "/proc/uptime",
		"/proc/sys", "/sys/devices/system/cpu", "/sys/devices/system/node")
}

// devices are also writable. They store no data.
func devices() []string {
	return []string{"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"}
}
