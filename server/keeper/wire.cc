#include "server/keeper/wire.h"

#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace cairn::keeper {
namespace {

struct Header {
  uint32_t magic = 0x50454B43;  // "CKEP"
  uint16_t version = kVersion;
  uint16_t type = 0;
  uint32_t items = 0;
  uint32_t text_bytes = 0;
};
static_assert(std::endian::native == std::endian::little, "the layout is little-endian");
static_assert(sizeof(Header) == 16 && sizeof(Item) == 16);
static_assert(sizeof(Header) + (kMaxFdsPerMessage + 1) * sizeof(Item) + kMaxText <= kMaxMessage);

// Of descriptors that travel with the session; -1 for unknown bits.
int64_t FdsOfSession(const Item& session) {
  if (session.value > (kHasChannel | kHasPidfd | kHasProgress)) return -1;
  return std::popcount(session.value);
}

// The number of descriptors that travel with the message; -1 for an unknown type or a malformed
// item.
int64_t ExpectedFds(uint16_t version, MessageType type, const std::vector<Item>& items) {
  const size_t items_of_a_hold = version >= kAnsweringVersion ? 2 : 1;
  switch (type) {
    case MessageType::kBegin:
      return items.size() != 1 ? -1 : version >= kBlackBoxVersion ? 4 : 3;
    case MessageType::kSlabs:
      return static_cast<int64_t>(items.size()) - (version >= kUsesVersion ? 1 : 0);
    case MessageType::kHoldSlab:
      return items.size() == items_of_a_hold ? 1 : -1;
    case MessageType::kSessions: {
      int64_t fds = 0;
      for (const Item& item : items) {
        const int64_t of_one = FdsOfSession(item);
        if (of_one < 0) return -1;
        fds += of_one;
      }
      return fds;
    }
    case MessageType::kHoldSession:
      return items.size() == items_of_a_hold ? FdsOfSession(items.front()) : -1;
    case MessageType::kEnd:
    case MessageType::kDropSlab:
    case MessageType::kDropSession:
      return items.size() == 1 ? 0 : -1;
    case MessageType::kAnswer:
    case MessageType::kServing:
      return version >= kAnsweringVersion && items.size() == 1 ? 0 : -1;
  }
  return -1;
}

}  // namespace

std::string Encode(MessageType type, const std::vector<Item>& items, absl::string_view text,
                   uint16_t version) {
  text = text.substr(0, kMaxText);
  Header header;
  header.version = version;
  header.type = static_cast<uint16_t>(type);
  header.items = static_cast<uint32_t>(items.size());
  header.text_bytes = static_cast<uint32_t>(text.size());
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof(header));
  bytes.append(reinterpret_cast<const char*>(items.data()), items.size() * sizeof(Item));
  bytes.append(text.data(), text.size());
  return bytes;
}

StatusOr<Message> Decode(ReceivedMessage received, bool fds_lost) {
  const std::string& bytes = received.bytes;
  Header header;
  if (bytes.size() < sizeof(header)) {
    return absl::InvalidArgumentError(
        absl::StrCat("keeper message: ", bytes.size(), " bytes are less than a header"));
  }
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.magic != Header().magic) {
    return absl::InvalidArgumentError("keeper message: the magic is wrong");
  }
  if (header.version < kOldestVersion || header.version > kVersion) {
    return absl::UnimplementedError(absl::StrCat("keeper message: version ", header.version,
                                                 "; this build knows ", kOldestVersion, " to ",
                                                 kVersion));
  }
  const uint64_t item_bytes = uint64_t{header.items} * sizeof(Item);
  if (bytes.size() != sizeof(header) + item_bytes + header.text_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("keeper message: ", bytes.size(), " bytes for ",
                                                   header.items, " items and a text of ",
                                                   header.text_bytes));
  }
  Message message;
  message.version = header.version;
  message.type = static_cast<MessageType>(header.type);
  message.items.resize(header.items);
  if (item_bytes > 0) {
    std::memcpy(message.items.data(), bytes.data() + sizeof(header), item_bytes);
  }
  message.text = bytes.substr(sizeof(header) + item_bytes);
  message.fds = std::move(received.fds);
  const int64_t expected = ExpectedFds(message.version, message.type, message.items);
  if (expected < 0 || (!fds_lost && expected != static_cast<int64_t>(message.fds.size()))) {
    return absl::InvalidArgumentError(absl::StrCat("keeper message: type ", header.type, " with ",
                                                   header.items, " items came with ",
                                                   message.fds.size(), " descriptors"));
  }
  return message;
}

}  // namespace cairn::keeper
