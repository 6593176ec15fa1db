#!/usr/bin/env bash
# A throw-away Apache ActiveMQ Artemis for tests and examples: from a bare
# Debian machine to a broker that answers AMQP on loopback.
#
#   scripts/artemis.sh start     install what lacks, fetch, configure, start, wait until it answers
#   scripts/artemis.sh stop      end it in good order (SIGTERM), wait
#   scripts/artemis.sh kill9     end it as a crash would (SIGKILL)
#   scripts/artemis.sh wipe      delete its messages and queues (only while it is stopped)
#   scripts/artemis.sh env       print the variables that the tests read, as shell exports
#   scripts/artemis.sh get|create|status|log
#
# Every command may be repeated. Nothing is reachable from another machine.
#
# Settings (environment):
#   ARTEMIS_CACHE     downloads and instances   ${XDG_CACHE_HOME:-~/.cache}/keylanes/artemis
#   ARTEMIS_INSTANCE  name of the instance      main
#   ARTEMIS_PORT      AMQP                      25672
#   ARTEMIS_TLS_PORT  AMQP over TLS             25671
#   ARTEMIS_DATASYNC  true: fsync each write    false
#   ARTEMIS_HEAP      the JVM's -Xmx            1g
#   ARTEMIS_TIER      1: quick start, 4: speed  4
#   ARTEMIS_MEMORY    messages kept in memory   64Mb (above, they are paged to disk)
#
# Users (password = name): admin may do all; app may create, send and consume
# on app.#; ro may only consume; none may do nothing.
# Addresses: app.noauto.# aren't created on demand, app.dl3.# dead-letter after
# three attempts, app.topic.# are multicast, app.small.# refuse above 64 KiB;
# all others are anycast queues with unlimited attempts.
set -euo pipefail

version=2.40.0
cache=${ARTEMIS_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/keylanes/artemis}
name=${ARTEMIS_INSTANCE:-main}
port=${ARTEMIS_PORT:-25672}
tls_port=${ARTEMIS_TLS_PORT:-25671}
datasync=${ARTEMIS_DATASYNC:-false}
heap=${ARTEMIS_HEAP:-1g}
tier=${ARTEMIS_TIER:-4}
memory=${ARTEMIS_MEMORY:-64Mb}
home=$cache/apache-artemis-$version
inst=$cache/instance-$name
etc=$inst/etc
classes=$cache/classes-$version.jsa # of all instances

say() { echo "artemis ($name): $*"; }
die() { say "$*" >&2; exit 1; }

# as_root runs a command as root, with sudo where that is needed and there.
as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; elif command -v sudo >/dev/null; then sudo "$@"; else
    die "needs root to install packages: $*"
  fi
}

need_tools() {
  local want=()
  command -v java >/dev/null && command -v keytool >/dev/null || want+=(default-jre-headless)
  command -v mvn >/dev/null || [ -d "$home" ] || want+=(maven)
  [ ${#want[@]} = 0 ] && return
  command -v apt-get >/dev/null || die "please install: ${want[*]}"
  say "installing ${want[*]}"
  as_root apt-get update -qq >/dev/null
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${want[@]}" >/dev/null
}

get() {
  need_tools
  [ -x "$home/bin/artemis" ] && return
  mkdir -p "$cache"
  local tgz=$cache/apache-artemis-$version-bin.tar.gz part=$cache/part.$$ try
  if ! [ -f "$tgz" ]; then
    say "fetching $version"
    for try in 1 2 3; do # a registry may answer late
      mvn -q -B org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy \
        -Dartifact=org.apache.activemq:apache-artemis:$version:tar.gz:bin \
        -DoutputDirectory="$part" && break
      [ $try = 3 ] && die "can't fetch Artemis $version"
    done
    mv "$part"/*.tar.gz "$tgz" && rmdir "$part"
  fi
  # Unpack beside the place and rename: a broken unpack is never taken for good.
  mkdir -p "$part"
  tar -xzf "$tgz" -C "$part"
  mv "$part/apache-artemis-$version" "$home" 2>/dev/null || [ -x "$home/bin/artemis" ] || die "can't unpack into $home"
  rm -rf "$part" "$tgz"
}

grant() { # grant ROLE,ROLE PERMISSION… : permission elements for broker.xml
  local roles=$1 p; shift
  for p in "$@"; do printf '<permission type="%s" roles="%s"/>' "$p" "$roles"; done
}

create() {
  get
  mkdir -p "$etc" "$inst/data" "$inst/tmp"
  local u
  : >"$etc/users.properties"; : >"$etc/roles.properties"
  for u in admin app ro none; do
    echo "$u = $u" >>"$etc/users.properties"
    echo "$u = $u" >>"$etc/roles.properties"
  done
  cat >"$etc/login.config" <<X
activemq {
  org.apache.activemq.artemis.spi.core.security.jaas.PropertiesLoginModule required
    org.apache.activemq.jaas.properties.user="users.properties"
    org.apache.activemq.jaas.properties.role="roles.properties";
};
X
  cat >"$etc/log4j2.properties" <<'X'
rootLogger.level = WARN
rootLogger.appenderRef.out.ref = out
appender.out.name = out
appender.out.type = Console
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{HH:mm:ss.SSS} %-5level %logger{1}: %msg%n
X
  cat >"$etc/bootstrap.xml" <<X
<broker xmlns="http://activemq.apache.org/schema">
  <jaas-security domain="activemq"/>
  <server configuration="file:$etc/broker.xml"/>
</broker>
X
  cat >"$etc/management.xml" <<'X'
<management-context xmlns="http://activemq.apache.org/schema"/>
X
  # A certificate of its own for the TLS port; ca.pem is what clients trust.
  [ -f "$etc/key.p12" ] || keytool -genkeypair -alias amqps -keyalg EC -groupname secp256r1 -validity 3650 \
    -storetype PKCS12 -keystore "$etc/key.p12" -storepass changeit \
    -dname CN=localhost -ext san=dns:localhost,ip:127.0.0.1 2>/dev/null
  [ -f "$etc/ca.pem" ] || keytool -exportcert -rfc -alias amqps -keystore "$etc/key.p12" -storepass changeit \
    2>/dev/null >"$etc/ca.pem"
  local manage="createNonDurableQueue deleteNonDurableQueue createDurableQueue deleteDurableQueue createAddress deleteAddress"
  # amqpIdleTimeout 4 s: a client behind a black hole is given up within that,
  # so tests of takeovers don't wait for the default minute.
  local amqp="protocols=AMQP;amqpCredits=1000;amqpLowCredits=300;amqpIdleTimeout=4000"
  # Without datasync a write is nearly free, and none waits for another. With it
  # the broker's default stays: writes of 3.3 ms share one fsync.
  local buffer_timeout="<journal-buffer-timeout>0</journal-buffer-timeout>"
  [ "$datasync" = false ] || buffer_timeout=""
  # shellcheck disable=SC2086
  cat >"$etc/broker.xml" <<X
<configuration xmlns="urn:activemq"><core xmlns="urn:activemq:core">
  <name>keylanes-$name</name>
  <persistence-enabled>true</persistence-enabled>
  <journal-type>NIO</journal-type>
  <journal-datasync>$datasync</journal-datasync>
  $buffer_timeout
  <journal-file-size>10M</journal-file-size>
  <journal-min-files>2</journal-min-files>
  <journal-pool-files>4</journal-pool-files>
  <paging-directory>$inst/data/paging</paging-directory>
  <bindings-directory>$inst/data/bindings</bindings-directory>
  <journal-directory>$inst/data/journal</journal-directory>
  <large-messages-directory>$inst/data/large</large-messages-directory>
  <max-redelivery-records>-1</max-redelivery-records>
  <max-disk-usage>-1</max-disk-usage>
  <critical-analyzer>false</critical-analyzer>
  <global-max-size>$memory</global-max-size>
  <message-expiry-scan-period>500</message-expiry-scan-period>
  <acceptors>
    <acceptor name="amqp">tcp://127.0.0.1:$port?$amqp</acceptor>
    <acceptor name="amqps">tcp://127.0.0.1:$tls_port?$amqp;sslEnabled=true;keyStorePath=$etc/key.p12;keyStorePassword=changeit;keyStoreType=PKCS12</acceptor>
  </acceptors>
  <security-settings>
    <security-setting match="#">$(grant admin $manage manage send)$(grant admin,ro consume browse)</security-setting>
    <security-setting match="app.#">$(grant admin manage)$(grant admin,app $manage send)$(grant admin,app,ro consume browse)</security-setting>
  </security-settings>
  <address-settings>
    <address-setting match="#">
      <default-address-routing-type>ANYCAST</default-address-routing-type>
      <default-queue-routing-type>ANYCAST</default-queue-routing-type>
      <auto-delete-queues>false</auto-delete-queues>
      <auto-delete-addresses>false</auto-delete-addresses>
      <dead-letter-address>DLA</dead-letter-address>
      <auto-create-dead-letter-resources>true</auto-create-dead-letter-resources>
      <max-delivery-attempts>-1</max-delivery-attempts>
      <redelivery-delay>0</redelivery-delay>
    </address-setting>
    <address-setting match="DLA"><default-address-routing-type>MULTICAST</default-address-routing-type></address-setting>
    <address-setting match="app.dl3.#"><max-delivery-attempts>3</max-delivery-attempts></address-setting>
    <address-setting match="app.noauto.#"><auto-create-queues>false</auto-create-queues><auto-create-addresses>false</auto-create-addresses></address-setting>
    <address-setting match="app.small.#"><max-size-bytes>65536</max-size-bytes><address-full-policy>FAIL</address-full-policy></address-setting>
    <address-setting match="app.topic.#">
      <default-address-routing-type>MULTICAST</default-address-routing-type>
      <default-queue-routing-type>MULTICAST</default-queue-routing-type>
    </address-setting>
  </address-settings>
</core></configuration>
X
}

answers() { (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; }

# our_pid prints the broker's process id when it runs and is this instance's.
our_pid() {
  local p
  p=$(cat "$inst/pid" 2>/dev/null) || return 1
  [ -n "$p" ] && grep -qsF -- "-Dartemis.instance=$inst" "/proc/$p/cmdline" && echo "$p"
}

start() {
  local p i
  if p=$(our_pid) && answers; then say "already up on 127.0.0.1:$port (pid $p)"; return; fi
  answers && die "port $port is taken by something else: set ARTEMIS_PORT"
  create
  # A class archive halves the start. It is made by the first clean stop.
  local cds=-XX:ArchiveClassesAtExit=$inst/classes.jsa
  [ -s "$classes" ] && cds=-XX:SharedArchiveFile=$classes
  # Out of memory must end the broker: half alive, it accepts and never answers.
  setsid java "$cds" -Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off -XX:TieredStopAtLevel="$tier" \
    -XX:+UseSerialGC -XX:+ExitOnOutOfMemoryError -Xms64m -Xmx"$heap" \
    --add-opens java.base/jdk.internal.misc=ALL-UNNAMED \
    -Djava.security.auth.login.config="$etc/login.config" -Dlog4j2.configurationFile="$etc/log4j2.properties" \
    -Dartemis.home="$home" -Dartemis.instance="$inst" -Dartemis.instance.etc="$etc" \
    -Dartemis.instance.uri="file:$inst/" -Dartemis.instance.etc.uri="file:$etc/" \
    -Ddata.dir="$inst/data" -Djava.io.tmpdir="$inst/tmp" \
    -cp "$home/lib/artemis-boot.jar" org.apache.activemq.artemis.boot.Artemis run \
    >"$inst/log" 2>&1 </dev/null &
  p=$!
  echo $p >"$inst/pid"
  for ((i = 0; i < 1200; i++)); do
    # The acceptors open last, after the journal was read: who connects, is served.
    if answers; then say "up on 127.0.0.1:$port, TLS $tls_port (pid $p)"; return; fi
    kill -0 $p 2>/dev/null || { tail -20 "$inst/log" >&2; die "ended while starting"; }
    sleep 0.05
  done
  kill -9 $p 2>/dev/null || true
  tail -20 "$inst/log" >&2
  die "not up within a minute"
}

finish() { # finish SIGNAL
  local p i
  p=$(our_pid) || { rm -f "$inst/pid"; say "not running"; return; }
  kill "-$1" "$p" 2>/dev/null || true
  for ((i = 0; i < 600; i++)); do
    kill -0 "$p" 2>/dev/null || break
    [ $i = 400 ] && kill -9 "$p" 2>/dev/null
    sleep 0.05
  done
  rm -f "$inst/pid"
  if [ "$1" = TERM ] && [ -s "$inst/classes.jsa" ]; then mv -f "$inst/classes.jsa" "$classes"; fi
  say "ended (SIG$1)"
}

wipe() {
  our_pid >/dev/null && die "stop it first"
  rm -rf "${inst:?}/data" "${inst:?}/lock"
  mkdir -p "$inst/data"
}

case ${1:-} in
  get | create | start | wipe) "$1" ;;
  stop) finish TERM ;;
  kill9) finish KILL ;;
  status) if p=$(our_pid) && answers; then say "up, pid $p"; else say "down"; exit 1; fi ;;
  log) cat "$inst/log" ;;
  env)
    echo "export KEYLANES_AMQP_URL=amqp://admin:admin@127.0.0.1:$port"
    echo "export KEYLANES_AMQPS_URL=amqps://admin:admin@127.0.0.1:$tls_port"
    echo "export KEYLANES_AMQP_CA=$etc/ca.pem"
    ;;
  *) sed -n '2,/^set -e/s/^# \{0,1\}//p' "$0" | sed '$d'; exit 2 ;;
esac
