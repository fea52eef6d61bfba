#include "tests/bench/transport_ends.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <future>
#include <iostream>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/checksum.h"
#include "server/transport/tcp_transport.h"

namespace cairn::bench {
namespace {

using transport::TcpTransport;

constexpr transport::PeerId kOwner = {.rank = 0, .incarnation = 1}, kReader = {1, 1};
constexpr uint64_t kUnderWay = 64 << 20;
constexpr MonotonicNanos kPatience = 60 * kNanosPerSecond;

// The words that Fill writes for a seed, one after another.
class Words {
 public:
  explicit Words(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15) {}
  uint64_t Next() { return state_ = state_ * 6364136223846793005 + 1442695040888963407; }

 private:
  uint64_t state_;
};

Status Answer(const nlohmann::json& json) {
  std::cout << json.dump() << std::endl;
  return std::cout ? absl::OkStatus() : absl::UnavailableError("nobody hears the answer");
}

template <typename Answering>
Status AnswerAll(const Answering& answering) {
  for (std::string line; std::getline(std::cin, line);) {
    const auto request = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!request.is_object()) return absl::InvalidArgumentError("a request is a line of JSON");
    CAIRN_RETURN_IF_ERROR(answering(request));
  }
  return absl::OkStatus();
}

}  // namespace

StatusOr<Memory> Memory::Make(uint64_t bytes) {
  Memory made;
  CAIRN_ASSIGN_OR_RETURN(UniqueFd fd, MakeMemfd("bench", bytes, 0600));
  made.fd = std::make_shared<const UniqueFd>(std::move(fd));
  CAIRN_ASSIGN_OR_RETURN(
      made.mapping,
      Mapping::Map(made.fd->get(), 0, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE));
  std::memset(made.mapping.data(), 1, bytes);
  return made;
}

void Fill(const Memory& memory, uint64_t seed) {
  auto* words = reinterpret_cast<uint64_t*>(memory.mapping.data());
  Words right(seed);
  for (uint64_t i = 0; i < memory.mapping.length() / 8; ++i) words[i] = right.Next();
}

Status Check(const Memory& memory, uint64_t seed) {
  const auto* words = reinterpret_cast<const uint64_t*>(memory.mapping.data());
  Words right(seed);
  for (uint64_t i = 0; i < memory.mapping.length() / 8; ++i) {
    if (words[i] != right.Next()) {
      return absl::DataLossError(absl::StrCat("a wrong byte was read near ", i * 8));
    }
  }
  return absl::OkStatus();
}

StatusOr<double> ReadAll(transport::Transport* reader, const Owned& owned, uint64_t bytes) {
  const uint64_t whole = owned.crcs.size(), blocks = bytes / kBlockBytes;
  if (blocks == 0 || whole == 0) return absl::InvalidArgumentError("bytes: less than a block");
  std::atomic<uint64_t> left = blocks, next = 0, wrong = 0;
  std::promise<void> over;
  std::function<void()> read_next = [&] {
    const uint64_t number = next++;
    if (number >= blocks) return;
    const uint64_t block = number % whole, at = block * kBlockBytes;
    reader->Read({owned.address,
                  owned.token,
                  owned.region,
                  at,
                  {kSlab, 0, whole * kBlockBytes},
                  at,
                  kBlockBytes,
                  RealClock()->Now() + kPatience},
                 [&, block](const StatusOr<uint32_t>& crc) {
                   if (!crc.ok() || *crc != owned.crcs[block]) ++wrong;
                   read_next();
                   if (--left == 0) over.set_value();
                 });
  };
  const double start = NowMs();
  for (uint64_t i = 0; i < kUnderWay / kBlockBytes; ++i) read_next();
  over.get_future().wait();
  const double ms = NowMs() - start;
  if (wrong > 0) return absl::DataLossError(absl::StrCat(wrong.load(), " blocks were not read"));
  return ms;
}

StatusOr<Values> TransportOwnerChild(const Values& arguments) {
  const auto bytes = static_cast<uint64_t>(Number(arguments, "bytes"));
  CAIRN_ASSIGN_OR_RETURN(const Memory memory, Memory::Make(bytes));
  transport::TcpServerOptions server;
  server.listen = arguments.at("listen");
  CAIRN_ASSIGN_OR_RETURN(const auto owner, TcpTransport::Start(server, {.self = kOwner}));
  CAIRN_RETURN_IF_ERROR(owner->Attach(kSlab, memory.fd, bytes));
  const transport::GrantToken token = transport::NewGrantToken();
  CAIRN_RETURN_IF_ERROR(owner->Grant(token, kReader, {{kSlab, 0, bytes}}));
  CAIRN_ASSIGN_OR_RETURN(const std::string region, owner->Describe({kSlab, 0, bytes}));
  const absl::string_view shown(reinterpret_cast<const char*>(token.data()), token.size());
  const Status status = AnswerAll([&](const nlohmann::json& request) {
    Fill(memory, request.at("seed").get<uint64_t>());
    return Answer({{"address", owner->Address()},
                   {"token", absl::BytesToHexString(shown)},
                   {"region", absl::BytesToHexString(region)},
                   {"crcs", BlockCrcs(memory.mapping.data(), bytes, kBlockBytes)}});
  });
  CAIRN_RETURN_IF_ERROR(status);
  return Values();
}

StatusOr<Values> TransportReaderChild(const Values& arguments) {
  const auto bytes = static_cast<uint64_t>(Number(arguments, "bytes"));
  CAIRN_ASSIGN_OR_RETURN(const Memory memory, Memory::Make(bytes));
  CAIRN_ASSIGN_OR_RETURN(const auto reader, TcpTransport::Start({}, {.self = kReader}));
  CAIRN_RETURN_IF_ERROR(reader->Attach(kSlab, memory.fd, bytes));
  const Status status = AnswerAll([&](const nlohmann::json& request) -> Status {
    const auto crcs = request.at("crcs").get<std::vector<uint32_t>>();
    const std::string token = absl::HexStringToBytes(request.at("token").get<std::string>());
    Owned owned;
    owned.address = request.at("address").get<std::string>();
    owned.region = absl::HexStringToBytes(request.at("region").get<std::string>());
    owned.crcs = crcs;
    if (token.size() != owned.token.size() || crcs.size() * kBlockBytes != bytes) {
      return absl::InvalidArgumentError("token, crcs: they are of another length");
    }
    std::copy(token.begin(), token.end(), owned.token.begin());
    const auto length = request.at("length").get<uint64_t>();
    if (length < bytes) return absl::InvalidArgumentError("length: less than the memory");
    CAIRN_ASSIGN_OR_RETURN(const double ms, ReadAll(reader.get(), owned, length));
    CAIRN_RETURN_IF_ERROR(Check(memory, request.at("seed").get<uint64_t>()));
    return Answer({{"ms", ms}});
  });
  CAIRN_RETURN_IF_ERROR(status);
  return Values();
}

}  // namespace cairn::bench
