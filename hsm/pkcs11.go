package hsm

import (
	"fmt"
	"os"
	"sync"

	"github.com/miekg/pkcs11"
)

// module has the methods of *pkcs11.Ctx that this package uses. Tests inject faults between it and a real module.
type module interface {
	Initialize(...pkcs11.InitializeOption) error
	Finalize() error
	GetInfo() (pkcs11.Info, error)

	GetSlotList(tokenPresent bool) ([]uint, error)
	GetTokenInfo(slot uint) (pkcs11.TokenInfo, error)
	GetMechanismList(slot uint) ([]*pkcs11.Mechanism, error)
	InitToken(slot uint, pin, label string) error

	OpenSession(slot uint, flags uint) (pkcs11.SessionHandle, error)
	CloseSession(pkcs11.SessionHandle) error
	GetSessionInfo(pkcs11.SessionHandle) (pkcs11.SessionInfo, error)
	Login(s pkcs11.SessionHandle, user uint, pin string) error
	Logout(pkcs11.SessionHandle) error
	InitPIN(s pkcs11.SessionHandle, pin string) error

	FindObjectsInit(pkcs11.SessionHandle, []*pkcs11.Attribute) error
	FindObjects(s pkcs11.SessionHandle, most int) ([]pkcs11.ObjectHandle, bool, error)
	FindObjectsFinal(pkcs11.SessionHandle) error
	GetAttributeValue(pkcs11.SessionHandle, pkcs11.ObjectHandle, []*pkcs11.Attribute) ([]*pkcs11.Attribute, error)
	GenerateKeyPair(s pkcs11.SessionHandle, m []*pkcs11.Mechanism, public,
		private []*pkcs11.Attribute) (pkcs11.ObjectHandle, pkcs11.ObjectHandle, error)

	SignInit(pkcs11.SessionHandle, []*pkcs11.Mechanism, pkcs11.ObjectHandle) error
	Sign(pkcs11.SessionHandle, []byte) ([]byte, error)
}

// loadModule loads the shared library. The library is never unloaded, because modules leave threads and exit handlers
// behind, which would then crash the process.
func loadModule(path string) (module, error) {
	if m := pkcs11.New(path); m != nil {
		return m, nil
	}
	if _, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("load module: %w; install the HSM's PKCS#11 library, or correct module-path", err)
	}
	return nil, fmt.Errorf("load module %s: not a loadable PKCS#11 library; `ldd %[1]s` lists missing libraries", path)
}

// initializing serialises C_Initialize of all modules in the process, which share the C library. SoftHSM 2.6.1 reads
// its configuration with strtok. If two copies do so concurrently, one silently uses the tokens of the system instead.
var initializing sync.Mutex

// initialize calls C_Initialize. The binding sets CKF_OS_LOCKING_OK, which makes one session per thread safe (PKCS#11
// v2.40 base, section 5.4).
func initialize(m module) error {
	initializing.Lock()
	defer initializing.Unlock()
	return failed("C_Initialize", m.Initialize())
}

// openModule loads the module and calls C_Initialize.
func (o Options) openModule() (string, module, error) {
	path, err := o.URI.Locate()
	if err != nil {
		return "", nil, err
	}
	m, err := o.load(path)
	if err != nil {
		return "", nil, err
	}
	err = initialize(m)
	if rvOf(err) == pkcs11.CKR_CRYPTOKI_ALREADY_INITIALIZED {
		err = fmt.Errorf("%w: this process already uses the module, and a module serves one signer", err)
	}
	if err != nil {
		return "", nil, fmt.Errorf("open module %s: %w", path, err)
	}
	return path, m, nil
}
