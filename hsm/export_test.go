package hsm

import "time"

// Library is the interface at which tests inject faults.
type Library = module

// Through returns the options with a wrapper around the real module.
func (o Options) Through(wrap func(Library) Library) Options {
	o.load = loadThrough(wrap)
	return o
}

// Through returns the options with a wrapper around the real module.
func (o InitOptions) Through(wrap func(Library) Library) InitOptions {
	o.load = loadThrough(wrap)
	return o
}

func loadThrough(wrap func(Library) Library) func(string) (module, error) {
	return func(path string) (module, error) {
		m, err := loadModule(path)
		if err != nil {
			return nil, err
		}
		return wrap(m), nil
	}
}

// Within returns the options with limits that suit a test; see limits.
func (o Options) Within(call, drain, pause time.Duration) Options {
	o.limits = limits{call: call, drain: drain, pause: pause, retire: 50 * time.Millisecond}
	return o
}

// Parts of the package that have separate tests.
var (
	ParsePoint  = parsePoint
	FindLibrary = findLibrary
	Registered  = registeredPath
	CPUTime     = cpuTime
)
