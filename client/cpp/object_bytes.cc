#include "client/cpp/object_bytes.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/checksum.h"
#include "common/fd.h"

namespace cairn::client {
namespace {

StatusOr<DeviceReader::Piece> Bring(const Segment& segment, uint64_t skip, char* into, uint64_t n) {
  DeviceReader::Piece piece = DevicePieceOf(segment, skip, into, n);
  CAIRN_RETURN_IF_ERROR(segment.device->Read(absl::MakeSpan(&piece, 1)));
  return piece;
}

// The CRC-32 of a whole segment that lies on a device. It is brought for nothing else.
StatusOr<uint32_t> ZipCrcThere(const Segment& segment) {
  std::string scratch(std::min<uint64_t>(segment.length, kBlockBytes), '\0');
  uint32_t crc = 0;
  for (uint64_t done = 0; done < segment.length;) {
    const uint64_t n = std::min<uint64_t>(segment.length - done, scratch.size());
    CAIRN_ASSIGN_OR_RETURN(const DeviceReader::Piece piece,
                           Bring(segment, done, scratch.data(), n));
    crc = ZipCrc32Combine(crc, piece.zip_crc, n);
    done += n;
  }
  return crc;
}

}  // namespace

Status ReadSourceFile(int fd, uint64_t offset, char* into, uint64_t n, uint32_t* crc) {
  for (uint64_t done = 0; done < n;) {
    const uint64_t piece = std::min(kCheckedReadBytes, n - done);
    const Status read = PreadAll(fd, into + done, piece, offset + done);
    if (absl::IsDataLoss(read)) {
      return absl::FailedPreconditionError(
          absl::StrCat("a file that is being saved has become shorter: ", read.message()));
    }
    CAIRN_RETURN_IF_ERROR(read);
    *crc = Crc32c(*crc, into + done, piece);
    done += piece;
  }
  return absl::OkStatus();
}

DeviceReader::Piece DevicePieceOf(const Segment& segment, uint64_t skip, char* into, uint64_t n) {
  DeviceReader::Piece piece;
  piece.from = reinterpret_cast<uint64_t>(segment.data) + skip;
  piece.into = into;
  piece.bytes = n;
  piece.wants_zip_crc = segment.record >= 0;
  return piece;
}

StatusOr<ObjectBytes> ObjectBytes::Make(const ObjectLayout* layout) {
  std::vector<uint32_t> crcs(layout->records(), 0);
  for (const Segment& segment : layout->segments()) {
    if (segment.literal >= 0 || segment.record < 0) continue;
    if (segment.device != nullptr) {
      CAIRN_ASSIGN_OR_RETURN(crcs[segment.record], ZipCrcThere(segment));
    } else {
      crcs[segment.record] = ZipCrc32(crcs[segment.record], segment.data, segment.length);
    }
  }
  return ObjectBytes(layout, std::move(crcs));
}

Status ObjectBytes::Read(uint64_t offset, uint64_t length, char* into) const {
  return ReadAndSum(offset, length, into, nullptr);
}

StatusOr<std::vector<uint32_t>> ObjectBytes::BlockCrcs() const {
  std::vector<uint32_t> crcs, zip_crcs(crcs_.size(), 0);
  std::string block;
  for (uint64_t at = 0; at < layout_->length(); at += block.size()) {
    block.resize(std::min<uint64_t>(kBlockBytes, layout_->length() - at));
    CAIRN_RETURN_IF_ERROR(ReadAndSum(at, block.size(), block.data(), &zip_crcs));
    crcs.push_back(Crc32c(0, block.data(), block.size()));
  }
  for (const Segment& segment : layout_->segments()) {
    if (segment.literal >= 0 || segment.record < 0 || segment.device != nullptr) continue;
    if (zip_crcs[segment.record] != crcs_[segment.record]) {
      return absl::FailedPreconditionError("what is saved changed while it was read");
    }
  }
  return crcs;
}

Status ObjectBytes::ReadAndSum(uint64_t offset, uint64_t length, char* into,
                               std::vector<uint32_t>* zip_crcs) const {
  const auto& starts = layout_->starts();
  const auto& segments = layout_->segments();
  const uint64_t end = offset + length;
  size_t i =
      static_cast<size_t>(std::upper_bound(starts.begin(), starts.end(), offset) - starts.begin()) -
      1;
  for (uint64_t at = offset; at < end; ++i) {
    const Segment& segment = segments[i];
    const uint64_t skip = at - starts[i];
    const uint64_t n = std::min(segment.length - skip, end - at);
    char* const to = into + (at - offset);
    if (segment.literal >= 0) {
      CAIRN_ASSIGN_OR_RETURN(const std::string literal, layout_->Literal(segment, crcs_));
      if (literal.size() != segment.length) {
        return absl::InternalError("zip literal of an unexpected length");
      }
      std::memcpy(to, literal.data() + skip, n);
    } else if (segment.device != nullptr) {
      CAIRN_RETURN_IF_ERROR(Bring(segment, skip, to, n).status());
    } else if (segment.fd >= 0) {
      uint32_t unused = 0;
      CAIRN_RETURN_IF_ERROR(ReadSourceFile(segment.fd, segment.offset + skip, to, n, &unused));
    } else {
      std::memcpy(to, static_cast<const char*>(segment.data) + skip, n);
      if (zip_crcs != nullptr && segment.record >= 0) {
        uint32_t& crc = (*zip_crcs)[segment.record];
        crc = ZipCrc32(crc, to, n);
      }
    }
    at += n;
  }
  return absl::OkStatus();
}

}  // namespace cairn::client
