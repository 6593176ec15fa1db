//go:build race

package plansim

func init() { raceEnabled = true }
