package measure

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// CPU is what this process has used so far, user and system.
func CPU() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err) // it fails for bad arguments only
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// Machine describes where this runs, and how busy it is now.
func Machine() string {
	return fmt.Sprintf("%s; %d cores of %s; %s/%s, %s, GOMAXPROCS %d; load average %s",
		time.Now().UTC().Format("2006-01-02 15:04 UTC"), runtime.NumCPU(), processor(),
		runtime.GOOS, runtime.GOARCH, runtime.Version(), runtime.GOMAXPROCS(0), Load())
}

// Load is the load average of the last 1, 5 and 15 minutes, where the system
// says it.
func Load() string {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	if f := strings.Fields(string(b)); len(f) >= 3 {
		return strings.Join(f[:3], " ")
	}
	return "unknown"
}

func processor() string {
	b, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "an unknown processor"
	}
	for line := range strings.Lines(string(b)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "an unknown processor"
}
