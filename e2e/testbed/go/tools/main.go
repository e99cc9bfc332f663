// Command tools holds Helm and CoreDNS in one file: linked under the name of
// one of them, it is that program. They are apart from the kube module because
// both want newer Kubernetes libraries than the release under test is built of.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	helm "helm.sh/helm/v4/pkg/cmd"

	// The plugins that answer a cluster's own names, and no more.
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
)

func main() {
	switch name := filepath.Base(os.Args[0]); name {
	case "coredns":
		dnsserver.Directives = []string{"bind", "errors", "ready", "cache", "kubernetes"}
		coremain.Run()
	case "helm":
		os.Exit(runHelm())
	default:
		fmt.Fprintf(os.Stderr, "called as %q; link this file as one of: coredns, helm\n", name)
		os.Exit(2)
	}
}

// runHelm gives the exit status of the Helm command line; Helm prints its own errors.
func runHelm() int {
	command, err := helm.NewRootCmd(os.Stdout, os.Args[1:], helm.SetupLogging)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if command.Execute() != nil {
		return 1
	}
	return 0
}
