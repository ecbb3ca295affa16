#!/usr/bin/env python3
"""Fails when an include goes against the modules' arrows, or a third-party header is used outside its files.

usage: check_arrows.py SOURCE_ROOT      prints FILE:LINE: REASON for each mistake; exit code 1 when there is one
"""
import pathlib
import re
import sys

# apps -> launcher -> {rendezvous, remote} -> base; rendezvous and remote never see each other.
MAY_INCLUDE = {
    "base": {"base"},
    "remote": {"remote", "base"},
    "rendezvous": {"rendezvous", "base"},
    "launcher": {"launcher", "rendezvous", "remote", "base"},
    "apps/ddplaunch": {"apps/ddplaunch", "launcher", "rendezvous", "remote", "base"},
    "apps/ddplaunchd": {"apps/ddplaunchd", "launcher", "rendezvous", "remote", "base"},
    # Takes masters, and connects to nobody.
    "apps/ddplaunch_listen": {"apps/ddplaunch_listen", "launcher", "rendezvous", "remote", "base"},
    # Asks NVIDIA's library, and knows nothing of us.
    "apps/ddplaunch_nvml": {"apps/ddplaunch_nvml"},
    # The bundled worker is a client of the rendezvous and knows nothing of launching.
    "apps/train": {"apps/train", "rendezvous", "base"},
}
# Beyond that: the agent's program connects to nobody over SSH.
NEVER = {"apps/ddplaunchd": "remote/ssh_", "apps/ddplaunch_listen": "remote/ssh_"}
MODULES = {folder.split("/")[0] for folder in MAY_INCLUDE}
# A third-party library is included by the named files only.
ONLY_IN = {
    "libssh/": {"remote/ssh_session.cc", "remote/ssh_session_steps.cc", "remote/ssh_handshake.cc", "remote/ssh_pump.cc", "remote/ssh_keys.cc"},
    "openssl/": {"remote/known_hosts.cc", "rendezvous/secure_stream.cc", "rendezvous/secure_stream_context.cc", "rendezvous/secure_stream_key.cc"},
    "spdlog/": {"base/log.h", "base/log.cc"},
    "nlohmann/": {"apps/train/checkpoint.cc", "rendezvous/collective_log.cc", "apps/train/safetensors.cc", "launcher/check_deep.cc", "launcher/check_json.cc", "launcher/error_json.cc", "launcher/report_json.cc", "rendezvous/worker_protocol.cc"},
    "yaml-cpp/": {"apps/ddplaunch/accelerate_config.cc"},
    "gloo/": {"apps/train/gloo_communicator.cc"},
    "nccl.h": {"apps/train/nccl_library.h"},
    "CLI/": {"apps/ddplaunch/options.cc", "apps/ddplaunch/option_groups.cc", "apps/train/options.cc", "apps/train/bench_options.cc", "apps/train/health_options.cc"},
}
# Asio has one door, so that its settings are the same everywhere.
ASIO_DOOR = {"base/asio.h", "base/asio_impl.cc"}
# Sans-IO cores: no sockets, clocks, threads, environment or logger.
CORES = {
    "remote/hostfile", "remote/host_range", "remote/host_filter", "remote/host_entry", "remote/host_key", "remote/host_word",
    "remote/jump_command", "remote/nearest_word", "remote/scheduler_hosts", "remote/shell_quote", "remote/bootstrap", "remote/push_script",
    "rendezvous/message", "rendezvous/frame", "rendezvous/codec", "rendezvous/output_queue", "rendezvous/rank_plan", "rendezvous/key_store",
    "rendezvous/tcp_store_codec", "rendezvous/store_waiters", "rendezvous/member", "rendezvous/node_lease", "rendezvous/membership", "rendezvous/membership_attempt", "rendezvous/membership_types", "rendezvous/membership_words", "rendezvous/seats",
    "rendezvous/worker_protocol", "rendezvous/worker_session", "rendezvous/client_hello", "rendezvous/link_identity", "rendezvous/link_refusal", "rendezvous/listen_guard",
    "launcher/job_spec", "launcher/join_job", "launcher/join_line", "launcher/join_table", "launcher/output_options", "launcher/line_fold", "launcher/json_lines", "launcher/env_filter", "launcher/setup_script", "launcher/worker_env", "launcher/job_events", "launcher/supervisor", "launcher/supervisor_members", "launcher/supervisor_revoke", "launcher/supervisor_start", "launcher/survivors", "launcher/worker_lives", "launcher/failure_log", "launcher/master_address", "launcher/clean_text", "launcher/node_limits", "launcher/network_words", "launcher/start_messages",
    "launcher/label", "launcher/cgroup_path", "launcher/output_credit", "launcher/output_lines", "launcher/open_rows", "launcher/escape_reader", "launcher/bar_frame",
    "launcher/bar_fold", "launcher/daemon_frame", "launcher/text_width", "launcher/terminal_view", "launcher/console_queue", "launcher/live_board", "launcher/exit_report", "launcher/exit_code", "launcher/root_cause", "launcher/failure_hints", "launcher/job_end", "launcher/error_json",
    "launcher/kernel_evidence", "launcher/report_json", "launcher/net_choice", "launcher/hang_watch", "launcher/hang_judge", "launcher/hang_inquiry", "launcher/supervisor_hang", "launcher/hang_report", "launcher/wait_state", "launcher/check_deep", "launcher/check_run", "launcher/check_ifname", "launcher/check_judge", "launcher/check_network", "launcher/check_text", "launcher/check_json", "launcher/text_table", "launcher/gpu_facts", "apps/train/sampler", "apps/train/lr_schedule", "apps/train/gradient_buckets", "apps/train/collective_schedule", "apps/train/collective_machine", "apps/train/vector_sum", "apps/train/bench_report", "apps/train/health_gemm", "apps/train/health_judge", "apps/train/health_pattern", "rendezvous/collective_log", "rendezvous/missing_collective", "apps/train/nccl_environment", "apps/train/nccl_log",
}
CORE_FORBIDS = re.compile(
    r"^(boost/asio.*|base/asio\.h|base/log\.h|sys/(socket|epoll|wait)\.h|thread|mutex|fstream|iostream|unistd\.h)$")
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)')


def folder_of(name):
    """The entry of MAY_INCLUDE that a path belongs to: its first folder, in apps/ its first two."""
    parts = name.split("/")
    return "/".join(parts[:2]) if parts[0] == "apps" else parts[0]


def wrong_own(name, header):
    folder = folder_of(name)
    if header.split("/")[0] not in MODULES:
        return f'"{header}" is not written from the repository root'
    if folder_of(header) not in MAY_INCLUDE[folder] or header.startswith(NEVER.get(folder, "\0")):
        return f'{folder.removeprefix("apps/")} may not include "{header}"'
    return None


def wrong_library(name, header):
    if header.startswith("boost/asio") and name not in ASIO_DOOR:
        return f'<{header}>: include "base/asio.h"'
    for library, files in ONLY_IN.items():
        if header.startswith(library) and name not in files:
            return f"<{header}> belongs to {', '.join(sorted(files))}"
    return None


def violations(root):
    for folder in MAY_INCLUDE:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in {".h", ".cc", ".cu", ".cuh"}:
                continue
            name = path.relative_to(root).as_posix()
            is_core = name.removesuffix(path.suffix) in CORES
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                found = INCLUDE.match(line)
                if not found:
                    continue
                ours, theirs = found.groups()
                wrong = wrong_own(name, ours) if ours else wrong_library(name, theirs)
                if not wrong and is_core and CORE_FORBIDS.match(ours or theirs):
                    wrong = f"a sans-IO core may not include {ours or theirs}"
                if wrong:
                    yield f"{name}:{number}: {wrong}"


def main():
    found = list(violations(pathlib.Path(sys.argv[1])))
    for line in found:
        print(line, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
