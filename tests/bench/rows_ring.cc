// Rows about what nodes read from each other. Two network namespaces of a user namespace are the nodes,
// joined by a veth pair, so that no right is needed.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/checksum.h"
#include "server/transport/tcp_transport.h"
#include "tests/bench/harness.h"
#include "tests/bench/transport_ends.h"

namespace cairn::bench {
namespace {

using transport::GrantToken;
using transport::TcpTransport;

constexpr char kOwnerAddress[] = "10.99.0.1", kReaderAddress[] = "10.99.0.2";
constexpr uint16_t kTransportPort = 7001, kRawPort = 7002;
constexpr transport::PeerId kOwner = {.rank = 0, .incarnation = 1}, kReader = {1, 1};
constexpr size_t kRawPiece = 1 << 20;

Status Say(const std::string& path, const std::string& text) {
  const UniqueFd fd(open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!fd.valid() || write(fd.get(), text.data(), text.size()) < 0) return ErrnoStatus(errno, path);
  return absl::OkStatus();
}

Status Command(const std::string& line) {
  const int code = std::system(line.c_str());
  return code == 0 ? absl::OkStatus() : absl::InternalError(absl::StrCat(line, ": status ", code));
}

// This process becomes root of namespaces of its own.
Status EnterNamespaces() {
  const uid_t uid = geteuid();
  const gid_t gid = getegid();
  if (unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) return ErrnoStatus(errno, "user namespaces");
  CAIRN_RETURN_IF_ERROR(Say("/proc/self/setgroups", "deny"));
  CAIRN_RETURN_IF_ERROR(Say("/proc/self/uid_map", absl::StrCat("0 ", uid, " 1")));
  return Say("/proc/self/gid_map", absl::StrCat("0 ", gid, " 1"));
}

// What both nodes see; made before they part.
struct Shared {
  GrantToken token = {};
  char region[64] = {};
  size_t region_bytes = 0;
  uint32_t crcs[4096] = {};  // of the blocks that the owner has now
};

sockaddr_in At(const char* address, uint16_t port) {
  sockaddr_in at = {};
  at.sin_family = AF_INET;
  at.sin_port = htons(port);
  inet_pton(AF_INET, address, &at.sin_addr);
  return at;
}

// --- the reference: send and recv between two mappings

struct RawRange {
  uint64_t offset = 0, length = 0;
  uint64_t by_sendfile = 0;
};

void SendRaw(int socket, const Memory& memory) {
  RawRange range;
  if (recv(socket, &range, sizeof(range), MSG_WAITALL) != sizeof(range)) return;
  while (range.length > 0) {
    auto at = static_cast<off_t>(range.offset);
    const ssize_t n = range.by_sendfile != 0
                          ? sendfile(socket, memory.fd->get(), &at, range.length)
                          : send(socket, memory.mapping.data() + range.offset,
                                 std::min<uint64_t>(range.length, kRawPiece), MSG_NOSIGNAL);
    if (n <= 0) return;
    range.offset += static_cast<uint64_t>(n);
    range.length -= static_cast<uint64_t>(n);
  }
}

// With `crcs` each block is checksummed in pieces as it comes: what a transport would do that maps slabs.
Status ReceiveRaw(const Memory& memory, RawRange range, std::vector<uint32_t>* crcs) {
  const UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in at = At(kOwnerAddress, kRawPort);
  if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&at), sizeof(at)) != 0) {
    return ErrnoStatus(errno, "connect");
  }
  if (send(socket.get(), &range, sizeof(range), MSG_NOSIGNAL) != sizeof(range)) {
    return ErrnoStatus(errno, "send");
  }
  const uint64_t piece = crcs == nullptr ? kRawPiece : kCheckedReadBytes;
  while (range.length > 0) {
    char* const into = memory.mapping.data() + range.offset;
    const ssize_t n =
        recv(socket.get(), into, std::min(range.length, piece), crcs == nullptr ? 0 : MSG_WAITALL);
    if (n <= 0) return absl::UnavailableError("the raw stream ended");
    if (crcs != nullptr) {
      uint32_t& crc = (*crcs)[range.offset / kBlockBytes];
      crc = Crc32c(crc, into, static_cast<size_t>(n));
    }
    range.offset += static_cast<uint64_t>(n);
    range.length -= static_cast<uint64_t>(n);
  }
  return absl::OkStatus();
}

StatusOr<double> ReadRaw(const Memory& memory, int streams, const Shared& shared, bool checked) {
  const uint64_t bytes = memory.mapping.length();
  std::vector<uint32_t> crcs(bytes / kBlockBytes);
  std::vector<std::future<Status>> ends;
  const double start = NowMs();
  for (int i = 0; i < streams; ++i) {
    const uint64_t share = bytes / static_cast<uint64_t>(streams);
    const RawRange range = {share * static_cast<uint64_t>(i), share, checked};
    ends.push_back(std::async(std::launch::async, [&, range] {
      return ReceiveRaw(memory, range, checked ? &crcs : nullptr);
    }));
  }
  Status status;
  for (std::future<Status>& end : ends) status.Update(end.get());
  const double ms = NowMs() - start;
  CAIRN_RETURN_IF_ERROR(status);
  if (!checked) crcs = BlockCrcs(memory.mapping.data(), bytes, kBlockBytes);
  for (size_t i = 0; i < crcs.size(); ++i) {
    if (crcs[i] != shared.crcs[i]) return absl::DataLossError("the raw stream brought other bytes");
  }
  return static_cast<double>(bytes) / 1e6 / (ms / 1e3);
}

// --- the two nodes

// Answers each byte that comes with one, once the owner's memory has other bytes.
Status BeOwner(uint64_t bytes, Shared* shared, int commands, int answers) {
  CAIRN_ASSIGN_OR_RETURN(const Memory memory, Memory::Make(bytes));
  transport::TcpServerOptions server;
  server.listen = absl::StrCat(kOwnerAddress, ":", kTransportPort);
  CAIRN_ASSIGN_OR_RETURN(const auto owner, TcpTransport::Start(server, {.self = kOwner}));
  CAIRN_RETURN_IF_ERROR(owner->Attach(kSlab, memory.fd, bytes));
  shared->token = transport::NewGrantToken();
  CAIRN_RETURN_IF_ERROR(owner->Grant(shared->token, kReader, {{kSlab, 0, bytes}}));
  CAIRN_ASSIGN_OR_RETURN(const std::string region, owner->Describe({kSlab, 0, bytes}));
  shared->region_bytes = region.size();
  std::memcpy(shared->region, region.data(), region.size());

  const UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in at = At(kOwnerAddress, kRawPort);
  if (bind(listener.get(), reinterpret_cast<const sockaddr*>(&at), sizeof(at)) != 0 ||
      listen(listener.get(), 16) != 0) {
    return ErrnoStatus(errno, "raw port");
  }
  std::vector<std::thread> senders;
  std::thread accepting([&] {
    for (;;) {
      const int socket = accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC);
      if (socket < 0) return;
      senders.emplace_back([socket, &memory] {
        const UniqueFd owned(socket);
        SendRaw(socket, memory);
      });
    }
  });
  uint64_t seed = 0;
  for (char command = 0; read(commands, &command, 1) == 1;) {
    Fill(memory, ++seed);
    const std::vector<uint32_t> crcs = BlockCrcs(memory.mapping.data(), bytes, kBlockBytes);
    std::copy(crcs.begin(), crcs.end(), shared->crcs);
    if (write(answers, &command, 1) != 1) break;
  }
  shutdown(listener.get(), SHUT_RDWR);
  accepting.join();
  for (std::thread& sender : senders) sender.join();
  return absl::OkStatus();
}

StatusOr<Values> BeReader(uint64_t bytes, int pairs, const Shared& shared, int commands,
                          int answers) {
  CAIRN_ASSIGN_OR_RETURN(const Memory memory, Memory::Make(bytes));
  CAIRN_ASSIGN_OR_RETURN(const auto reader, TcpTransport::Start({}, {.self = kReader}));
  CAIRN_RETURN_IF_ERROR(reader->Attach(kSlab, memory.fd, bytes));
  const auto change = [&] {
    char byte = 'f';
    return write(commands, &byte, 1) == 1 && read(answers, &byte, 1) == 1
               ? absl::OkStatus()
               : absl::UnavailableError("the owner has ended");
  };
  Values values;
  std::vector<double> mapped;
  for (int pair = -1; pair < pairs; ++pair) {  // the first warms up
    CAIRN_RETURN_IF_ERROR(change());
    const Owned owned = {absl::StrCat(kOwnerAddress, ":", kTransportPort), shared.token,
                         std::string(shared.region, shared.region_bytes),
                         absl::MakeConstSpan(shared.crcs, bytes / kBlockBytes)};
    CAIRN_ASSIGN_OR_RETURN(const double ms, ReadAll(reader.get(), owned, bytes));
    const double ours = static_cast<double>(bytes) / 1e6 / (ms / 1e3);
    CAIRN_RETURN_IF_ERROR(change());
    double raw = 0;
    for (const int streams : {1, 2}) {
      CAIRN_ASSIGN_OR_RETURN(const double rate, ReadRaw(memory, streams, shared, false));
      raw = std::max(raw, rate);
    }
    CAIRN_ASSIGN_OR_RETURN(const double checked, ReadRaw(memory, 2, shared, true));
    if (pair < 0) continue;
    mapped.push_back(checked);
    values[absl::StrCat("ours", pair)] = absl::StrCat(ours);
    values[absl::StrCat("raw", pair)] = absl::StrCat(raw);
  }
  values["mapped"] = absl::StrCat(Median(mapped));
  return values;
}

}  // namespace

StatusOr<Values> TcpReadChild(const Values& arguments) {
  const auto bytes = static_cast<uint64_t>(Number(arguments, "bytes")) / kBlockBytes * kBlockBytes;
  const int pairs = static_cast<int>(Number(arguments, "pairs"));
  CAIRN_RETURN_IF_ERROR(EnterNamespaces());
  void* const page =
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED || bytes / kBlockBytes > std::size(Shared().crcs)) {
    return absl::InternalError("shared memory");
  }
  auto* const shared = new (page) Shared();
  int to_owner[2], to_reader[2];
  if (pipe2(to_owner, O_CLOEXEC) != 0 || pipe2(to_reader, O_CLOEXEC) != 0) {
    return ErrnoStatus(errno, "pipe");
  }
  // The child is the owner, in a network namespace of its own.
  const pid_t owner = fork();
  if (owner < 0) return ErrnoStatus(errno, "fork");
  if (owner == 0) {
    close(to_owner[1]);
    Status status = unshare(CLONE_NEWNET) == 0 ? absl::OkStatus() : ErrnoStatus(errno, "unshare");
    char byte = 0;
    if (write(to_reader[1], &byte, 1) != 1 || read(to_owner[0], &byte, 1) != 1) _exit(1);
    status.Update(
        Command(absl::StrCat("ip addr add ", kOwnerAddress,
                             "/24 dev owner && ip link set owner up && ip link set lo up")));
    if (status.ok()) status = BeOwner(bytes, shared, to_owner[0], to_reader[1]);
    if (!status.ok()) std::fprintf(stderr, "owner: %s\n", status.ToString().c_str());
    _exit(status.ok() ? 0 : 1);
  }
  close(to_owner[0]);
  close(to_reader[1]);
  char byte = 0;
  if (read(to_reader[0], &byte, 1) != 1) return absl::InternalError("the owner has ended");
  CAIRN_RETURN_IF_ERROR(Command(absl::StrCat(
      "ip link add reader type veth peer name owner netns ", owner, " && ip addr add ",
      kReaderAddress, "/24 dev reader && ip link set reader up && ip link set lo up")));
  if (write(to_owner[1], &byte, 1) != 1) return absl::InternalError("the owner has ended");
  StatusOr<Values> values = BeReader(bytes, pairs, *shared, to_owner[1], to_reader[0]);
  close(to_owner[1]);
  waitpid(owner, nullptr, 0);
  return values;
}

StatusOr<Row> TcpRead(const Settings& settings) {
  Row row;
  row.name = "tcp_read";
  row.unit = "MB/s";
  row.reference = "send and recv between mappings, the better of 1 and 2 streams";
  row.bar = 0.85;
  row.higher_is_better = true;
  row.absurd_reference = 500;
  CAIRN_ASSIGN_OR_RETURN(const Values values, RunChild(settings, "tcp_read",
                                                       {{"bytes", absl::StrCat(settings.bytes)},
                                                        {"pairs", absl::StrCat(settings.pairs)}}));
  for (int pair = 0; pair < settings.pairs; ++pair) {
    row.pairs.push_back(
        {Number(values, absl::StrCat("ours", pair)), Number(values, absl::StrCat("raw", pair))});
  }
  row.note = absl::StrFormat(
      "two namespaces, veth; 2 streams of sendfile into a mapping, checksummed: %.0f MB/s",
      Number(values, "mapped"));
  return row;
}

}  // namespace cairn::bench
