#include "remote/bootstrap/push_script.h"

#include <utility>

#include "base/result.h"

namespace ddp::remote {
namespace {

// These scripts run in any POSIX shell: dash, bash, busybox, ksh, zsh. The questions to the agent and its
// answers are described in apps/ddplaunchd/main.cc.
//
// `safe DIRECTORY FILE` applies the rule of base/files.h (distrust_program) by `ls`, in one call for
// the file and all its parents. It sets $a to the file's path without symbolic links. That path must be
// executed, since a link of another user can change after the check. If the file is not safe, $w is the path
// that others may write to, as far as the format of `ls` shows it. `may` tests a file that need not exist,
// and `program` tests if `train` belongs to the agent at a path, as companion_program() finds it.
// No builtin has a redirection here, since dash needs free descriptors for one (see limits).
constexpr std::string_view kSafe =
    "u=; safe() { a=$(cd -P \"$1/\" && pwd -P) || return 1; [ -z \"$2\" ] || a=${a%/}/$2; "
    "q=$a; set --; while [ \"$q\" ]; do set -- \"$q\" \"$@\"; q=${q%/*}; done; set -- / \"$@\"; "
    "w=$(ls -ldn \"$@\" 2>/dev/null | { while read -r m x o g x x x x f; do "
    "case $o in 65534) case $(echo $(head -n 1 /proc/self/uid_map)) in \"0 0 \"*|\"\") ;; *) o=0;; esac;; "
    "esac; "
    "[ $o = 0 ] || [ $o = ${u:=$(id -u)} ] || o=x; "
    R"(case $m,$g in d????????[tT]*|[d-]????-??-*|l*) ;; [d-]????w*+,*) o=x;; [d-]????w??-*,0) ;; )"
    R"([d-]????w??-*) [ $g = $(id -g) ] && [ $g = $(id -u) ] || o=x;; *) o=x;; esac; )"
    "[ $o = x ] && echo \"${f%% -> *}\" && exit 1; shift; done; [ $# = 0 ]; }) || return 1; "
    "[ -L \"$a\" ] || return 0; x=$(readlink \"$a\") || return 1; case $x in /*) ;; *) x=${a%/*}/$x;; esac; "
    "safe \"${x%/*}\" \"${x##*/}\"; }; "
    "may() { [ -e \"$1/$2\" ] || return 127; safe \"$1\" \"$2\" && return; "
    "echo \"not used: $1/$2, since other users could replace ${w:-it}\" | head -n 1 >&2; return "
    "@DISTRUSTED@; }; "
    "program() { x=${1%/*}/../libexec/ddplaunch; [ -e \"$x/train\" ] || x=${1%/*}; "
    "may \"$x\" train && [ -x \"$a\" ]; }; ";

// $i is the installed agent, for kInstalled.
constexpr std::string_view kFirstLookup =
    "c=${XDG_CACHE_HOME:-$HOME/.cache}/ddplaunch f=; "
    "for k in -@KEYS@; do "
    "d=$c/agent-$k; [ $k = - ] && d=${0%/*}; "
    "w= b=; may \"$d\" ddplaunchd && b=$a && @TRAIN@w=$(\"$b\" --fits @FITS@ </dev/null 2>/dev/null); r=$?; "
    "case \"$r@KEYS@ \" in 0*\" $w \"*) echo \"ddplaunchd-runs $b\"; exec \"$b\" --stdio;; esac; "
    "f=\"$f $r\"; [ $k = - ] && i=$b; "
    "done; ";

constexpr std::string_view kNeed =
    "echo \"ddplaunchd-need $(uname -m)$f\"; "
    "read -r n || { echo \"ddplaunchd-fail its standard input is closed (docker exec without -i?)\"; exit 1; "
    "}; "
    "eval \"$(head -c $n)\"";

// Many shells read a text file without #! as a script. This lookup does not prevent that.
constexpr std::string_view kGivenLookup =
    "n() { echo \"ddplaunchd-fail $*\"; exit 1; }; "
    "e=$(command -v \"$0\") || e=$0; "
    "[ -e \"$e\" ] || n \"no ddplaunchd at $0\"; "
    "[ -d \"$e\" ] && n \"$0 is a directory, not the program ddplaunchd\"; "
    "[ -x \"$e\" ] || n \"$0 may not be executed there\"; "
    "safe \"${e%/*}\" \"${e##*/}\" || "
    "n \"$0 is not executed there, since other users could replace ${w:-it}; "
    "without --agent and --no-push, ddplaunch copies its own\"; "
    "echo \"ddplaunchd-runs $a\"; exec \"$a\" \"$@\"";

// This text follows the lines that push_script() writes. It builds its replies to the master from $m, so that
// a terminal that echoes the script (docker exec -t) prints none of them. `why` collects "; PLACE: REASON".
// `bare` removes empty directories, up to the cache itself. Another push that runs at the same time creates
// the cache again.
constexpr std::string_view kPush = R"sh(
m=ddplaunchd u=$(id -u) why= got= summed= t= k=
drop() {
  [ -z "$t" ] || rm -f "$t" "$t"-*
  [ -z "$got" ] || rm -f "$got"-*
  for f in "$k" "${got%/*}"; do [ -z "$f" ] || bare "$f"; done
}
bare() { rmdir "$1" 2>/dev/null && rmdir "${1%/*}" 2>/dev/null; }
trap 'drop 2>/dev/null' EXIT
trap 'exit 1' HUP INT PIPE TERM
fail() { drop 2>/dev/null; echo "$m-fail $*"; exit 1; }
no() { why="$why; $d: $1"; return 1; }
reason() { r=${1%%"
"*}; no "${r##*: }"; }
# A shell that has no descriptors left, or whose file may not grow, gives no reason.
limits() {
  r=$(ulimit -n) && case $r in
    ?|1?|2?|3?) fail "too few open files are allowed there (ulimit -n $r)";;
  esac
}
fits() { safe "${1%/*}" "${1##*/}" && beside "$1" && [ "$("$1" --fits $fits </dev/null 2>/dev/null)" = "$key" ]; }
start() { echo "$m-runs $1"; exec "$1" --stdio; }
ours() {
  set -- $(ls -ldn "$d" 2>/dev/null)
  case "$1 $3" in
    d????-??-*" $u") safe "$d" "" || no "other users could replace ${w:-it}";;
    *) no "it is there, but no directory that only this account may write to";;
  esac
}
place() {
  e=$( { [ -d "${d%/*}" ] || mkdir -p "${d%/*}"; } 2>&1) || reason "$e" || return 1
  [ -d "$d" ] || e=$(mkdir -m 700 "$d" 2>&1) || [ -d "$d" ] || reason "$e" || return 1
  ours || return 1
  k=$d/agent-$key
  for f in $names; do [ ! -d "$k/$f" ] || no "agent-$key/$f is a directory" || return 1; done
  [ -d "$k" ] || mkdir -m 700 "$k" 2>/dev/null || mkdir -m 700 "$d" 2>/dev/null
  [ -d "$k" ] || e=$(mkdir -m 700 "$k" 2>&1) || [ -d "$k" ] || reason "$e" || return 1
  safe "$k" "" || no "other users could replace ${w:-it}" || return 1
  k=$a
  t=$k/.push-$(uname -n)-$$
  e=$(head -c $total /dev/zero 2>&1 >"$t") || {
    rm -f "$t"; bare "$k"; reason "${e:-files may not grow to $total bytes (ulimit -f $(ulimit -f))}"; return 1
  }
  rm -f "$t"
}
take() {
  echo "$m-send $1"
  head -c $3 >"$got-$2" || fail "cannot write $got-$2"
  s=$(wc -c <"$got-$2")
  [ $s -eq $3 ] || fail "$s bytes of $2 arrived instead of $3"
  chmod 700 "$got-$2"
  s=$(sha256sum <"$got-$2" 2>/dev/null)
  [ -n "$s" ] || return 0
  [ "${s%% *}" = $4 ] || damaged $2
  summed=1
}
verify() { [ -n "$summed" ] || "$t-$m" --verify $2 "$t-$1" </dev/null >/dev/null 2>&1 || damaged $1; }
damaged() { fail "$1 arrived damaged; does a terminal stand on the way (docker exec -t)?"; }
leave() { [ "$t" = "$got" ] || rm -f "$t"-*; bare "$k"; return 1; }
copy() {
  [ "$t" != "$got" ] || return 0
  for f in $names; do cp "$got-$f" "$t-$f" && chmod 700 "$t-$f" || return 1; done
}
settle() {
  if [ -z "$anew" ]; then
    ln "$t-$1" "$k/$1" 2>/dev/null && return
    if [ $1 = $m ]; then fits "$k/$m" && return; else [ -x "$k/$1" ] && return; fi
  fi
  mv -f "$t-$1" "$k/$1"
}
keep() {
  e=$(copy 2>&1) || reason "$e" || leave || return 1
  e=$("$t-$m" --fits $fits 2>&1 </dev/null)
  case $? in
    0) ;;
    126) no "programs cannot be run there (mounted noexec?)" || leave || return 1;;
    *) reason "${e:-the agent does not run there}" || leave || return 1;;
  esac
  verify_all
  e=$(runs 2>&1) || fail "$e"
  for f in $names; do e=$(settle $f 2>&1) || reason "$e" || leave || return 1; done
  rm -f "$got"-* "$t"-*
}
sweep() {
  cd "$d" || return
  ls -t | { n=0; while read -r f; do case $f in agent-*)
    n=$((n+1))
    [ $n -le 3 ] || [ -z "$(find "$f" -prune -mtime +30)" ] || rm -rf "./$f";;
  esac; done; }
  cd / && for d; do
    case $d in /*) [ -d "$d" ] && ours && find "$d/." -name ".push-*" -mtime +0 -exec rm -f "{}" ";";; esac
  done
}
limits
set -- "${XDG_CACHE_HOME:+$XDG_CACHE_HOME/ddplaunch}" "${HOME:+$HOME/.cache/ddplaunch}" \
  "/var/tmp/ddplaunch-$u" "${TMPDIR:-/tmp}/ddplaunch-$u" "/dev/shm/ddplaunch-$u"
for d; do
  case $d in /*) ;; *) continue;; esac
  [ -z "$anew" ] && [ -d "$d" ] && ours && safe "$d/agent-$key" $m && b=$a && fits "$b" && start "$b"
done
why=
for d; do
  case $d in /*) ;; *) continue;; esac
  case $why in *"; $d: "*) continue;; esac
  place || continue
  if [ -z "$got" ]; then got=$t; take_all; fi
  keep || continue
  bare "${got%/*}"
  [ -z "$why" ] || echo "ddplaunchd is kept in $d; not in ${why#; }" >&2
  (sweep "$@") >/dev/null 2>&1
  trap - EXIT HUP INT PIPE TERM
  start "$k/$m"
done
fail "no place to put it: ${why#; }"
)sh";

constexpr std::string_view kInstalled = "exec \"$i\" --stdio";

/// The arguments of --fits. They are letters, digits and a few signs, so they need no quoting.
std::string fits_text(const AgentWanted& wanted) {
  std::string words = std::to_string(wanted.hello.protocol) + " " + wanted.hello.version;
  for (const std::string& key : wanted.keys)
    words += " " + key;
  return words;
}

std::string replaced(std::string_view text, std::string_view mark, std::string_view value) {
  std::string made(text);
  for (std::size_t at = 0; (at = made.find(mark, at)) != std::string::npos; at += value.size())
    made.replace(at, mark.size(), value);
  return made;
}

std::string safe_functions() {
  return replaced(kSafe, "@DISTRUSTED@", std::to_string(kDistrusted));
}

std::string with_length(const std::string& script) {
  return std::to_string(script.size()) + "\n" + script;
}

/// csh accepts no longer words than 1,023 bytes.
constexpr std::size_t kMaxWord = 900;

/// The command that runs `script` with the functions of kSafe, for the agent at `path`. Arguments may follow.
std::vector<std::string> with_safe(const std::string& path, const std::string& script) {
  const std::string whole = safe_functions() + script;
  std::vector<std::string> words{"sh", "-c", "p=", path};
  for (std::size_t at = 0; at < whole.size(); at += kMaxWord) {
    words.push_back(whole.substr(at, kMaxWord));
    words[2] += "${" + std::to_string(words.size() - 4) + '}';
  }
  words[2] += "; shift " + std::to_string(words.size() - 4) + "; eval \"$p\"";
  return words;
}

}  // namespace

std::vector<std::string> first_lookup(const AgentWanted& wanted, bool anew) {
  if (anew) return {"sh", "-c", std::string(kNeed), wanted.path};
  std::string keys;
  for (const std::string& key : wanted.keys)
    keys += " " + key;
  std::string script = replaced(kFirstLookup, "@KEYS@", keys).append(kNeed);
  script = replaced(script, "@FITS@", fits_text(wanted));
  script = replaced(script, "@TRAIN@", wanted.train ? "program \"$b\" && " : "");
  return with_safe(wanted.path, script);
}

std::vector<std::string> given_lookup(const std::vector<std::string>& argv) {
  std::vector<std::string> words = with_safe(argv.at(0), std::string(kGivenLookup));
  words.insert(words.end(), argv.begin() + 1, argv.end());
  return words;
}

std::string push_script(const AgentWanted& wanted, std::string_view key, const std::vector<PushedFile>& files,
                        bool anew) {
  DDP_REQUIRE(!files.empty() && files.back().name == "ddplaunchd", files.size());
  std::size_t total = 0;
  std::string names;
  std::string takes;
  std::string checks;
  for (std::size_t i = 0; i < files.size(); ++i) {
    const PushedFile& file = files[i];
    total += file.size;
    names += (i == 0 ? "" : " ") + file.name;
    takes += " take " + std::to_string(i) + " " + file.name + " " + std::to_string(file.size) + " " +
             file.sha256 + ";";
    checks += " verify " + file.name + " " + file.sha256 + ";";
  }
  std::string script = "key=" + std::string(key) + " total=" + std::to_string(total) + " names=\"" + names +
                       "\" fits=\"" + fits_text(wanted) + "\" anew=" + (anew ? "1" : "") + "\n";
  script += safe_functions() + "\n";
  script += "take_all() {" + takes + " }\nverify_all() {" + checks + " }\n";
  if (wanted.train) {
    script += "beside() { program \"$1\"; }\n";
    script += "runs() { \"$t-train\" --version </dev/null 2>&1 >/dev/null; }\n";
  } else {
    script += "beside() { :; }\nruns() { :; }\n";
  }
  return with_length(script.append(kPush));
}

std::string installed_script() {
  return with_length(std::string(kInstalled));
}

}  // namespace ddp::remote
