#include "launcher/report/echo_texts.h"

#include <algorithm>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace ddp::launcher {
namespace {

constexpr EchoText kEchoTexts[] = {
    // NCCL, and PyTorch's use of it
    {"collective operation timeout", "PyTorch, ProcessGroupNCCL.cpp",
     "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, "
     "Timeout(ms)=1800000) ran for 1800123 milliseconds before timing out."},
    {"eartbeat monitor timed out", "PyTorch, ProcessGroupNCCL.cpp",
     "Heartbeat monitor timed out! Process will be terminated after dumping debug info."},
    {"NCCL communicator was aborted", "PyTorch, NCCLUtils.hpp",
     "RuntimeError: NCCL communicator was aborted on rank 3."},
    {"ncclRemoteError", "PyTorch, NCCLUtils.hpp",
     "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting "
     "prematurely."},
    {"remote process exited or there was a network error", "NCCL, src/init.cc",
     "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1970, remote process exited or "
     "there was a network error, NCCL version 2.18.1"},
    {"IBV_WC_RETRY_EXC_ERR", "NCCL, src/transport/net_ib.cc",
     "NET/IB: Got completion from peer 10.0.0.1<4791> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=129"},
    // Gloo
    {"send operation to complete", "Gloo, transport/tcp/unbound_buffer.cc",
     "RuntimeError: [/opt/gloo/transport/tcp/unbound_buffer.cc:119] Timed out waiting 1800000ms for send "
     "operation "
     "to complete"},
    {"recv operation to complete", "Gloo, transport/tcp/unbound_buffer.cc",
     "RuntimeError: [/opt/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv "
     "operation "
     "to complete"},
    {"Connection closed", "Gloo, transport/tcp/pair.cc; NCCL, src/misc/socket.cc",
     "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer "
     "[10.0.0.1]:7"},
    // PyTorch's TCPStore
    {"Socket Timeout", "PyTorch, TCPStore.cpp", "RuntimeError: Socket Timeout"},
    {"DistStoreError", "PyTorch, TCPStore.cpp",
     "torch.distributed.DistStoreError: wait timeout after 600000ms, keys: /default_pg/0//cuda//0"},
    {"seconds waiting for clients", "PyTorch, TCPStore.cpp",
     "RuntimeError: Timed out after 301 seconds waiting for clients. 2/4 clients joined."},
    {"The client socket has", "PyTorch, socket.cpp",
     "torch.distributed.DistNetworkError: The client socket has timed out after 300s while trying to connect "
     "to "
     "(gpu01, 29500)."},
    {"ailed to recv, got 0 bytes", "PyTorch, c10d/Utils.hpp",
     "torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed. Did the "
     "remote "
     "server shutdown or crash?"},
    {"Connection was likely closed", "PyTorch, c10d/Utils.hpp",
     "torch.distributed.DistNetworkError: failed to send. Connection was likely closed."},
    // MPI
    {"Communication error with rank", "MPICH, ch3",
     "MPIDI_CH3U_Recvq_FDU_or_AEP(629): Communication error with rank 3"},
    {"MPI_ERR_PROC_FAILED", "Open MPI, ULFM", "*** MPI_ERR_PROC_FAILED: Process Failure"},
    {"Transport retry count exceeded", "UCX, uct/ib",
     "Transport retry count exceeded on mlx5_0:1/RoCE (synd 0x15 vend 0x81 hw_synd 0/0)"},
    {"ndpoint timeout", "UCX, ucs/type/status.c",
     "Error: mca_pml_ucx_send_nbr failed: -80, Endpoint timeout"},
    // JAX and gRPC
    {"UNAVAILABLE: ", "gRPC, and what uses it",
     "jaxlib.xla_extension.XlaRuntimeError: UNAVAILABLE: failed to connect to all addresses"},
    {"Socket closed", "gRPC", "Error received from peer  {grpc_message:\"Socket closed\", grpc_status:14}"},
    {"heartbeat timeout", "XLA, coordination_service.cc",
     "Task /job:jax_worker/replica:0/task:0 heartbeat timeout. This indicates that the remote task has "
     "failed, got "
     "preempted, or crashed unexpectedly."},
    {"Barrier timed out", "XLA, coordination_service.cc",
     "jaxlib.xla_extension.XlaRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Barrier_id: "
     "PjRT_Client_Connect."},
    {"coordination service", "XLA, coordination_service_agent.cc",
     "Polled an error from coordination service (this can be an error from this or another task)."},
    {"distributed service detected fatal errors", "XLA, pjrt/distributed/client.h",
     "Terminating process because the JAX distributed service detected fatal errors. This most likely "
     "indicates that "
     "another task died"},
    // The kernel's own words, from any program
    {"Connection reset", "ECONNRESET", "ConnectionResetError: [Errno 104] Connection reset by peer"},
    {"Connection refused", "ECONNREFUSED", "ConnectionRefusedError: [Errno 111] Connection refused"},
    {"Connection timed out", "ETIMEDOUT", "RuntimeError: recv failed: Connection timed out"},
    {"Broken pipe", "EPIPE", "BrokenPipeError: [Errno 32] Broken pipe"},
    {"No route to host", "EHOSTUNREACH", "OSError: [Errno 113] No route to host"},
    // Python
    {"ConnectionResetError", "Python, asyncio", "ConnectionResetError: Connection lost"},
    {"EOFError\n", "Python, multiprocessing: without a message", "EOFError"},
    {"0 bytes read on a total of", "Python, asyncio",
     "asyncio.exceptions.IncompleteReadError: 0 bytes read on a total of 8 expected bytes"},
    // ddplaunch
    {" lost rank ", "the bundled trainer", "train: rank 3 lost rank 2 in an all-reduce: connection closed"},
};

/// The last lines of 80,000 ranks must not cost seconds, so a text is searched once for all words, by their
/// first bytes.
constexpr std::size_t kKeyBytes = 4;

std::size_t key_of(const char* bytes) {
  std::uint32_t value = 0;
  std::memcpy(&value, bytes, kKeyBytes);
  return (value * 2654435761U) >> 16;
}

std::bitset<1 << 16> all_keys() {
  std::bitset<1 << 16> keys;
  for (const EchoText& echo : kEchoTexts)
    keys.set(key_of(echo.words.data()));
  return keys;
}

}  // namespace

std::span<const EchoText> echo_texts() {
  return kEchoTexts;
}

bool is_echo(std::string_view text) {
  static const std::bitset<1 << 16> keys = all_keys();
  for (std::size_t at = 0; at + kKeyBytes <= text.size(); ++at) {
    if (!keys.test(key_of(text.data() + at))) continue;
    const std::string_view rest = text.substr(at);
    if (std::ranges::any_of(kEchoTexts,
                            [rest](const EchoText& echo) { return rest.starts_with(echo.words); }))
      return true;
  }
  return false;
}

}  // namespace ddp::launcher
