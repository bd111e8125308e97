package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// ticksPerSecond is the unit of CPU times in /proc.
const ticksPerSecond = 100

// cpuSeconds returns the CPU time that this process and each of its children have used.
func cpuSeconds() (map[string]float64, error) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, fmt.Errorf("reading the processes: %w", err)
	}
	seconds, self := map[string]float64{}, strconv.Itoa(os.Getpid())
	for _, path := range stats {
		content, err := os.ReadFile(path) //nolint:gosec // It is in /proc.
		if err != nil {
			continue // It has ended.
		}
		pid, rest, _ := strings.Cut(string(content), " (")
		name, rest, _ := strings.Cut(rest, ") ")
		fields := strings.Fields(rest)
		if len(fields) < 13 || pid != self && fields[1] != self {
			continue
		}
		user, _ := strconv.ParseFloat(fields[11], 64)
		system, _ := strconv.ParseFloat(fields[12], 64)
		seconds[name] += (user + system) / ticksPerSecond
	}
	return seconds, nil
}
