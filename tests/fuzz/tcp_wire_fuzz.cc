// The data stream's frames. The first byte of an input says what the rest is:
//   one frame or region   a clean refusal, or a value that encodes to the same bytes
//   a conversation        what a reader sends to a real owner, from its opening on; the owner answers with
//                         frames that can be read, sends bytes of its slab under the good grant alone, and
//                         then holds no stream
// A frame's checksum would keep the fuzzer out of what stands behind it. So one bit of the first byte says
// that checksums are made right before the bytes are used, and 16 bytes of 0xFF stand for the good token.
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>

#include "common/checksum.h"
#include "glog/logging.h"
#include "server/transport/region.h"
#include "server/transport/tcp_transport.h"
#include "server/transport/tcp_wire.h"
#include "tests/fuzz/fuzz_support.h"

namespace cairn::testing {
namespace {

using namespace transport;

enum Kind : uint8_t { kOpening, kOpened, kQuestion, kAnswer, kRegion, kConversation, kKinds };
constexpr uint8_t kRightChecksums = 0x80;

constexpr SlabId kSlab = 3;
constexpr uint64_t kSlabBytes = 64 << 10, kGrantedAt = 4096, kGrantedBytes = 8192;
constexpr PeerId kReader = {.rank = 1, .incarnation = 7};
constexpr size_t kMaxQuestions = 16;

void MakeRight(std::string* bytes, size_t at, size_t size) {
  if (at + size > bytes->size()) return;
  const size_t checked = size - sizeof(uint32_t);
  const uint32_t crc = Crc32c(0, bytes->data() + at, checked);
  std::memcpy(bytes->data() + at + checked, &crc, sizeof(crc));
}

template <class Decode>
void CheckFrame(std::string bytes, bool right, Decode decode) {
  if (right && bytes.size() > sizeof(uint32_t)) MakeRight(&bytes, 0, bytes.size());
  const auto value = decode(bytes);
  if (!value.ok()) {
    if (!absl::IsInvalidArgument(value.status())) Finding(value.status().ToString());
    return;
  }
  const std::string again = Encode(*value);
  if (again != bytes) Finding("a frame that is not what it decodes to");
}

// Of another version only what all versions have is looked at.
StatusOr<Opening> OpeningOfOurs(absl::string_view bytes) {
  auto opening = DecodeOpening(bytes);
  if (opening.ok() && opening->version != kTcpVersion) {
    return absl::InvalidArgumentError("another version");
  }
  return opening;
}

void CheckRegion(const std::string& bytes) {
  const auto extent = DecodeRegion(bytes);
  if (extent.ok() && EncodeRegion(*extent) != bytes) Finding("a region that is not its bytes");
}

class Owner {
 public:
  Owner() {
    FLAGS_minloglevel = google::GLOG_FATAL;
    token_ = NewGrantToken();
    for (uint64_t i = 0; i < kSlabBytes; ++i) bytes_.push_back(static_cast<char>(i * 37 + i / 251));
    auto started = TcpTransport::Start({.max_streams = 8, .max_strangers = 4}, {});
    auto memory = MakeMemfd("fuzz", kSlabBytes, 0600);
    if (!started.ok() || !memory.ok()) Finding("an owner cannot be started");
    transport_ = *std::move(started);
    if (!PwriteAll(memory->get(), bytes_.data(), bytes_.size(), 0).ok() ||
        !transport_->Attach(kSlab, std::make_shared<const UniqueFd>(*std::move(memory)), kSlabBytes)
             .ok() ||
        !transport_->Grant(token_, kReader, {{kSlab, kGrantedAt, kGrantedBytes}}).ok()) {
      Finding("an owner cannot be set up");
    }
  }

  void Converse(std::string said, bool right) {
    said.resize(std::min(said.size(), kOpeningBytes + kMaxQuestions * kQuestionBytes));
    if (right) MakeRight(&said, 0, kOpeningBytes);
    for (size_t at = kOpeningBytes; at + kQuestionBytes <= said.size(); at += kQuestionBytes) {
      const absl::string_view stands_for_token(
          "\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF"
          "\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF");
      if (absl::string_view(said).substr(at + 16, 16) == stands_for_token) {
        std::memcpy(said.data() + at + 16, token_.data(), token_.size());
      }
      if (right) MakeRight(&said, at, kQuestionBytes);
    }
    Check(said, Exchange(said));
    AwaitCalm("streams", [&] { return transport_->streams() == 0; });
  }

 private:
  // All that the owner says to it, until it hangs up.
  std::string Exchange(const std::string& said) {
    const std::atomic<bool> go_on = false;
    const MonotonicNanos deadline = RealClock()->Now() + 5 * kNanosPerSecond;
    auto fd = TcpSocket::Connect(transport_->Address(), deadline, kNanosPerSecond * 5, go_on);
    if (!fd.ok()) Finding(fd.status().ToString());
    if (send(fd->get(), said.data(), said.size(), MSG_NOSIGNAL) < 0 && errno != ECONNRESET &&
        errno != EPIPE) {
      Finding("send");
    }
    shutdown(fd->get(), SHUT_WR);
    std::string heard;
    for (std::array<char, 4096> some;;) {
      const StatusOr<bool> more = WaitReadable(fd->get(), 5000);
      if (!more.ok() || !*more) Finding("an owner neither answers nor hangs up");
      const ssize_t n = recv(fd->get(), some.data(), some.size(), 0);
      if (n <= 0) return heard;
      heard.append(some.data(), static_cast<size_t>(n));
    }
  }

  // What was heard may end anywhere: the owner cuts streams with a reset.
  void Check(const std::string& said, absl::string_view heard) const {
    if (heard.size() < kOpenedBytes) return;
    const auto opening = DecodeOpening(absl::string_view(said).substr(0, kOpeningBytes));
    if (!opening.ok() || !DecodeOpened(heard.substr(0, kOpenedBytes)).ok()) {
      Finding("an opening that cannot be read is answered, or with what cannot be read");
    }
    heard.remove_prefix(kOpenedBytes);
    for (size_t at = kOpeningBytes; heard.size() >= kAnswerBytes; at += kQuestionBytes) {
      const auto answer = DecodeAnswer(heard.substr(0, kAnswerBytes));
      heard.remove_prefix(kAnswerBytes);
      const auto question = at + kQuestionBytes <= said.size()
                                ? DecodeQuestion(absl::string_view(said).substr(at, kQuestionBytes))
                                : absl::InvalidArgumentError("there is none");
      if (!answer.ok() || !question.ok() || answer->sequence != question->sequence) {
        Finding("an answer to no question");
      }
      const bool may = opening->version == kTcpVersion && opening->reader == kReader &&
                       question->token == token_ && question->slab == kSlab &&
                       question->offset >= kGrantedAt &&
                       question->offset - kGrantedAt < kGrantedBytes &&
                       question->length <= kGrantedBytes - (question->offset - kGrantedAt);
      if ((answer->code == absl::StatusCode::kOk) != may) Finding("a wrong permission");
      if (!may) continue;
      const size_t came = std::min<size_t>(answer->length, heard.size());
      if (answer->length != question->length ||
          heard.substr(0, came) != absl::string_view(bytes_).substr(question->offset, came)) {
        Finding("other bytes");
      }
      heard.remove_prefix(came);
    }
  }

  std::string bytes_;
  GrantToken token_ = {};
  std::unique_ptr<TcpTransport> transport_;
};

}  // namespace
}  // namespace cairn::testing

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cairn::testing;
  if (size == 0) return 0;
  const bool right = (data[0] & kRightChecksums) != 0;
  const std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % kRightChecksums % kKinds) {
    case kOpening:
      CheckFrame(bytes, right, OpeningOfOurs);
      break;
    case kOpened:
      CheckFrame(bytes, right, cairn::transport::DecodeOpened);
      break;
    case kQuestion:
      CheckFrame(bytes, right, cairn::transport::DecodeQuestion);
      break;
    case kAnswer:
      CheckFrame(bytes, right, cairn::transport::DecodeAnswer);
      break;
    case kRegion:
      CheckRegion(bytes);
      break;
    default: {
      static auto* const owner = new Owner();
      owner->Converse(bytes, right);
    }
  }
  return 0;
}
