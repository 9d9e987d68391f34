#!/usr/bin/env bash
# The whole system on this machine: a real control plane, mock-cloud, operator and lease-apiserver, and
# a walk through what users do with them. Each command is printed before its output.
#
#   demo.sh         start, walk through, stay up (DEMO_ONESHOT=1: end afterwards)
#   demo.sh stop    stop what an earlier call left running
#
# Any step that does not do what it should ends the script with an error.
set -euo pipefail
cd "$(dirname "$0")/.."

# Relative, so that the printed commands are short; the script stays in this folder.
readonly dir=.demo
readonly group=leases.crawl.example.com version=v1alpha1
target_dir=${CARGO_TARGET_DIR:-target}
readonly bin=$target_dir/debug

# --- Output ------------------------------------------------------------------------------------

bold='' dim='' red='' plain=''
if [ -t 1 ]; then
    bold=$'\e[1m' dim=$'\e[2m' red=$'\e[31m' plain=$'\e[0m'
fi
timings=()
step_title='' step_started=0

end_step() {
    if [ -n "$step_title" ]; then
        timings+=("$(printf '%4ds  %s' "$((SECONDS - step_started))" "$step_title")")
    fi
    step_title=''
}

step() {
    end_step
    step_title=$1 step_started=$SECONDS
    printf '\n%s== %s%s\n' "$bold" "$1" "$plain"
}

fail() {
    printf '%serror: %s%s\n' "$red" "$*" "$plain" >&2
    exit 1
}

# Prints a command and runs it.
run() {
    printf '%s$ %s%s\n' "$dim" "$*" "$plain"
    eval "$*"
}

# Prints a command, runs it, and insists that it fails with TEXT in its output.
run_refused() {
    local text=$1 output
    shift
    printf '%s$ %s%s\n' "$dim" "$*" "$plain"
    if output=$(eval "$*" 2>&1); then
        fail "this should have been refused, and was not: $output"
    fi
    printf '%s\n' "$output"
    grep -qF -- "$text" <<<"$output" || fail "the refusal does not say \"$text\""
}

# wait_until SECONDS WHAT COMMAND ...: until the command succeeds.
wait_until() {
    local deadline=$((SECONDS + $1)) what=$2
    shift 2
    until "$@" >/dev/null 2>&1; do
        check_processes
        [ "$SECONDS" -lt "$deadline" ] || fail "$what did not happen in time; logs are in $dir/logs"
        sleep 0.2
    done
}

# --- Processes ---------------------------------------------------------------------------------

# start NAME COMMAND ...: in the background, its log in .demo/logs.
start() {
    local name=$1
    shift
    setsid "$@" >"$dir/logs/$name.log" 2>&1 </dev/null &
    echo "$!" >"$dir/pids/$name"
}

check_processes() {
    local file
    for file in "$dir"/pids/*; do
        kill -0 "$(cat "$file")" 2>/dev/null || fail "$(basename "$file") has ended"
    done
}

# A process is ours when its command line still names our folder of binaries.
stop_process() {
    local file=$1 pid
    pid=$(cat "$file")
    if [ -r "/proc/$pid/cmdline" ] && tr '\0' ' ' <"/proc/$pid/cmdline" | grep -qF -- "$bin/"; then
        kill -TERM "$pid" 2>/dev/null || true
        for _ in $(seq 100); do
            kill -0 "$pid" 2>/dev/null || break
            sleep 0.1
        done
        kill -KILL "$pid" 2>/dev/null || true
    fi
    rm -f "$file"
}

stop_all() {
    local name
    for name in proxy-operator lease-apiserver echo mock-cloud; do
        if [ -f "$dir/pids/$name" ]; then
            stop_process "$dir/pids/$name"
        fi
    done
    if [ -d "$dir/cluster" ] && [ -x "$bin/devcluster" ]; then
        "$bin/devcluster" --dir "$dir/cluster" down --purge
    fi
}

free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

# kubeconfig_with_token FILE TOKEN [NAMESPACE]: like the administrator's, with another identity.
kubeconfig_with_token() {
    kubectl config view --raw --minify --flatten >"$1"
    chmod 600 "$1"
    KUBECONFIG=$1 kubectl config set-credentials demo --token="$2" >/dev/null
    KUBECONFIG=$1 kubectl config set-context --current --user=demo --namespace="${3:-default}" >/dev/null
}

show_logs_on_failure() {
    local status=$?
    if [ "$status" -ne 0 ]; then
        printf '\n%sthe demo failed%s in step: %s\n' "$red" "$plain" "$step_title" >&2
        local log
        for log in "$dir"/logs/*.log; do
            [ -f "$log" ] || continue
            printf '\n--- last lines of %s\n' "$log" >&2
            tail -n 25 "$log" >&2
        done
    fi
    if [ "$status" -ne 0 ] || [ "${DEMO_ONESHOT:-}" = 1 ]; then
        stop_all || true
    fi
    exit "$status"
}

# --- Parts of the walk -------------------------------------------------------------------------

start_everything() {
    step "Build"
    run cargo build --locked --quiet --workspace --bins

    step "Start a control plane (etcd, kube-apiserver, kube-controller-manager)"
    run "$bin/devcluster" --dir "$dir/cluster" up
    KUBECONFIG=$("$bin/devcluster" --dir "$dir/cluster" kubeconfig)
    export KUBECONFIG
    kubectl=$("$bin/devcluster" build kubectl 2>/dev/null | awk 'END {print $NF}')
    PATH=$(dirname "$kubectl"):$(realpath "$bin"):$PATH
    export PATH

    step "Install CRDs and RBAC"
    run kubectl create namespace proxy-operator
    run kubectl apply -f config/crd -f config/rbac

    step "Start mock-cloud, the echo target, the operator and lease-apiserver"
    cloud_port=$(free_port) echo_port=$(free_port) lease_port=$(free_port) lease_admin_port=$(free_port)
    start mock-cloud "$bin/mock-cloud" serve --listen "127.0.0.1:$cloud_port" --state "$dir/cloud"
    start echo "$bin/proxy-operator" echo --listen "127.0.0.1:$echo_port" --self-signed-dir "$dir/echo"
    wait_until 20 "the start of the echo target" test -s "$dir/echo/echo.key"

    sed "s#http://127.0.0.1:7070#http://127.0.0.1:$cloud_port#" config/samples/providers-config.yaml \
        >"$dir/providers.yaml"
    kubeconfig_with_token "$dir/operator.kubeconfig" \
        "$(kubectl create token proxy-operator -n proxy-operator --duration=24h)"
    start proxy-operator "$bin/proxy-operator" --kubeconfig "$dir/operator.kubeconfig" \
        --leader-elect-namespace proxy-operator --providers-config "$dir/providers.yaml" \
        --provisioning-poll 1s --deletion-poll 1s --bind-address "127.0.0.1:$(free_port)" \
        --echo-url "https://127.0.0.1:$echo_port/" --echo-key-file "$dir/echo/echo.key" \
        --probe-ca-file "$dir/echo/ca.crt"

    run "$bin/devcluster" --dir "$dir/cluster" register "$group" "$version" "$lease_port" | tee "$dir/registered"
    kubeconfig_with_token "$dir/lease-apiserver.kubeconfig" \
        "$(kubectl create token lease-apiserver -n proxy-operator --duration=24h)"
    start lease-apiserver "$bin/lease-apiserver" --kubeconfig "$dir/lease-apiserver.kubeconfig" \
        --bind-address 127.0.0.1 --secure-port "$lease_port" --store "redb://$PWD/$dir/leases.redb" \
        --tls-cert-file "$(awk '/^certificate/ {print $2}' "$dir/registered")" \
        --tls-private-key-file "$(awk '/^key/ {print $2}' "$dir/registered")" \
        --admin-address "127.0.0.1:$lease_admin_port"
    wait_until 60 "the readiness of lease-apiserver" \
        curl --silent --fail "http://127.0.0.1:$lease_admin_port/readyz"
    run kubectl wait --for=condition=Available --timeout=60s "apiservice/$version.$group"
    wait_until 60 "the discovery of the lease API" kubectl get proxyleases.$group
    run kubectl api-resources --api-group "$group"
}

create_identities() {
    step "Two ServiceAccounts: one may lease, the other may not"
    run kubectl create namespace crawlers
    run kubectl create serviceaccount crawler -n crawlers
    run kubectl create serviceaccount somebody-else -n crawlers
    run kubectl create rolebinding crawler-leases -n crawlers --clusterrole=crawl-leaser \
        --serviceaccount=crawlers:crawler
    # No kubelet runs here, so the pod stays Pending: its identity is all that is needed.
    run "kubectl run crawler-0 -n crawlers --image=crawler --overrides='{\"spec\":{\"serviceAccountName\":\"crawler\"}}'"
    kubeconfig_with_token "$dir/crawler.kubeconfig" \
        "$(kubectl create token crawler -n crawlers --bound-object-kind Pod --bound-object-name crawler-0)" crawlers
    kubeconfig_with_token "$dir/somebody-else.kubeconfig" \
        "$(kubectl create token somebody-else -n crawlers)" crawlers
}

three_proxies_exist() {
    [ "$(kubectl get proxies -n crawlers -o name | wc -l)" -eq 3 ]
}

three_endpoints_accept() {
    local accepting='{.items[?(@.status.accepting==true)].metadata.name}'
    [ "$(kubectl get pxe -n crawlers -o jsonpath="$accepting" | wc -w)" -eq 3 ]
}

one_lease_is_counted() {
    kubectl get pxe -n crawlers -o jsonpath='{.items[*].status.active}' | grep -qw 1
}

no_lease_is_left() {
    [ -z "$(kubectl get pxl -n crawlers -o name)" ]
}

walk_through() {
    step "A pool of three proxies becomes Ready"
    run kubectl apply -n crawlers -f config/samples/proxypool.yaml
    wait_until 60 "the creation of three proxies" three_proxies_exist
    run kubectl wait -n crawlers --for=condition=Ready proxies --all --timeout=60s
    run kubectl get proxies -n crawlers
    run kubectl get proxypools -n crawlers
    wait_until 30 "the acceptance of leases" three_endpoints_accept

    step "A crawler's pod takes a lease"
    run KUBECONFIG=$dir/crawler.kubeconfig kubectl create lease shop-0 --pool eu --target shop.example.com
    run kubectl get proxyleases -n crawlers -o wide
    # Counts that nobody waits for are shown within five seconds.
    wait_until 20 "the count of the lease" one_lease_is_counted
    run kubectl get pxe -n crawlers

    step "An HTTPS request through the leased proxy names the exit it saw"
    run "kubectl get pxl shop-0 -n crawlers -o jsonpath='{.status.exitIP}{\"\\n\"}'"
    seen=$(run "curl --silent --show-error --fail --cacert $dir/echo/ca.crt -x \"\$(KUBECONFIG=$dir/crawler.kubeconfig kubectl create lease shop-0 --pool eu --target shop.example.com -o url)\" https://127.0.0.1:$echo_port/ip" | tee >(cat >&2) | tail -n 1)
    [ "$seen" = "$(kubectl get pxl shop-0 -n crawlers -o jsonpath='{.status.exitIP}')" ] ||
        fail "the target saw $seen, which is not the exit of the lease"
    echo "(the second create of the same name gave the same lease: it is the idempotency key)"

    step "Hold a lease for the time of a command"
    run "KUBECONFIG=$dir/crawler.kubeconfig kubectl px lease hold --pool eu -- curl --silent --show-error --fail --noproxy '' --cacert $dir/echo/ca.crt https://127.0.0.1:$echo_port/ip"

    step "The same create under another ServiceAccount is forbidden"
    run_refused Forbidden KUBECONFIG=$dir/somebody-else.kubeconfig kubectl create lease shop-1 --pool eu

    step "When all slots are taken: 409 with its counts"
    slots=$(kubectl get pxe -n crawlers -o jsonpath='{.items[*].status.max}' | tr ' ' '\n' | awk '{n += $1} END {print n}')
    printf '%s# %s slots, one is taken: take the others%s\n' "$dim" "$slots" "$plain"
    for n in $(seq 2 "$slots"); do
        KUBECONFIG=$dir/crawler.kubeconfig kubectl create lease "filler-$n" --pool eu -o name
    done
    run_refused NoProxyAvailable KUBECONFIG=$dir/crawler.kubeconfig kubectl create lease one-too-many --pool eu

    step "Release; a second release is 404"
    run KUBECONFIG=$dir/crawler.kubeconfig kubectl delete proxylease shop-0
    run_refused NotFound KUBECONFIG=$dir/crawler.kubeconfig kubectl delete proxylease shop-0

    step "A pod goes, and its leases with it"
    run kubectl delete pod crawler-0 -n crawlers
    wait_until 30 "the release of the pod's leases" no_lease_is_left
    run kubectl get pxl -n crawlers

    step "A proxy is deleted, and its port refuses"
    proxy=$(kubectl get proxies -n crawlers -o jsonpath='{.items[0].metadata.name}')
    url=$(kubectl get pxe "$proxy" -n crawlers -o jsonpath='{.status.url}')
    run kubectl delete proxy "$proxy" -n crawlers
    run_refused "onnect" curl --silent --show-error --max-time 5 -x "$url" --cacert "$dir/echo/ca.crt" "https://127.0.0.1:$echo_port/ip"
    run kubectl get events -n crawlers --field-selector "involvedObject.name=$proxy"
}

# --- Main --------------------------------------------------------------------------------------

if [ "${1:-}" = stop ]; then
    stop_all
    exit 0
fi

for tool in cargo curl python3 setsid; do
    command -v "$tool" >/dev/null || fail "$tool is needed and not installed"
done
if [ -d "$dir" ]; then
    stop_all
    rm -rf "$dir"
fi
mkdir -p "$dir/logs" "$dir/pids"
trap show_logs_on_failure EXIT

start_everything
create_identities
walk_through
end_step

printf '\n%sTime of each step%s\n' "$bold" "$plain"
printf '%s\n' "${timings[@]}"
printf '%4ds  in all\n' "$SECONDS"

if [ "${DEMO_ONESHOT:-}" != 1 ]; then
    cat <<EOF

${bold}Everything stays up.${plain} To use it:

    export KUBECONFIG=$KUBECONFIG
    export PATH=$(dirname "$kubectl"):$(realpath "$bin"):\$PATH

    kubectl get proxies -n crawlers
    kubectl create lease mine -n crawlers --pool eu
    curl --cacert $PWD/$dir/echo/ca.crt -x "\$(kubectl create lease -n crawlers --pool eu -o url)" https://127.0.0.1:$echo_port/ip

Logs are in $PWD/$dir/logs. To stop it:

    make demo-stop
EOF
fi
