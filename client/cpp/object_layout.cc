#include "client/cpp/object_layout.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace cairn::client {

void ObjectLayout::Add(const Segment& segment) {
  if (segment.device != nullptr &&
      std::find(devices_.begin(), devices_.end(), segment.device) == devices_.end()) {
    devices_.push_back(segment.device);
  }
  segments_.push_back(segment);
  starts_.push_back(starts_.back() + segment.length);
}

void ObjectLayout::Add(const Source& source, int32_t record) {
  Segment segment;
  segment.data = source.data;
  segment.length = source.length;
  segment.record = record;
  segment.fd = source.fd;
  segment.offset = source.offset;
  segment.device = source.device;
  Add(segment);
}

ObjectLayout ObjectLayout::Raw(absl::Span<const Source> sources) {
  ObjectLayout layout;
  layout.segments_.reserve(sources.size());
  for (const Source& source : sources) {
    if (source.length > 0) layout.Add(source, -1);
  }
  return layout;
}

StatusOr<ObjectLayout> ObjectLayout::Zip(const ZipPlan* plan, absl::Span<const Source> records,
                                         uint64_t length) {
  ObjectLayout layout;
  layout.segments_.reserve(2 * records.size() + 1);
  layout.starts_.reserve(2 * records.size() + 2);
  CAIRN_RETURN_IF_ERROR(layout.AddArchive(plan, records, length));
  return layout;
}

StatusOr<ObjectLayout> ObjectLayout::Pieces(absl::Span<const Piece> pieces,
                                            std::vector<PiecePlace>* places) {
  static constexpr char kZeros[kZipAlignment] = {};
  ObjectLayout layout;
  places->clear();
  places->reserve(pieces.size());
  for (const Piece& piece : pieces) {
    // A raw piece ends where it ends; an archive can be longer, by a gap within.
    if (const uint64_t odd = layout.length() % kZipAlignment; odd > 0) {
      layout.Add(Source{kZeros, kZipAlignment - odd}, -1);
    }
    const uint64_t begin = layout.length();
    if (piece.plan == nullptr) {
      for (const Source& source : piece.sources) {
        if (source.length > 0) layout.Add(source, -1);
      }
    } else {
      const uint64_t least = piece.plan->MinimumLength();
      const uint64_t length = (least + kZipAlignment - 1) / kZipAlignment * kZipAlignment;
      CAIRN_RETURN_IF_ERROR(Annotate(layout.AddArchive(piece.plan, piece.sources, length),
                                     absl::StrCat("pieces[", places->size(), "]")));
    }
    places->push_back({begin, layout.length() - begin});
  }
  return layout;
}

Status ObjectLayout::AddArchive(const ZipPlan* plan, absl::Span<const Source> records,
                                uint64_t length) {
  const auto& planned = plan->records();
  if (records.size() != planned.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("records: ", records.size(), ", the plan has ", planned.size()));
  }
  if (length < plan->MinimumLength() || length - plan->MinimumLength() > kZipMaxGap) {
    return absl::InvalidArgumentError(absl::StrCat("length: ", length, ", must be ",
                                                   plan->MinimumLength(), " and at most ",
                                                   kZipMaxGap, " more"));
  }
  const uint64_t begin = this->length();
  const auto archive = static_cast<uint32_t>(archives_.size());
  archives_.push_back({plan, records_, length});
  for (size_t i = 0; i < records.size(); ++i) {
    if (records[i].length != planned[i].length) {
      return absl::InvalidArgumentError(absl::StrCat("records[", i, "]: ", records[i].length,
                                                     " bytes, the plan has ", planned[i].length));
    }
    if (records[i].fd >= 0) {
      return absl::InvalidArgumentError(absl::StrCat("records[", i, "]: a file"));
    }
    const auto& placement = plan->placements()[i];
    if (begin + placement.header_offset != this->length()) {
      return absl::InternalError("zip plan with a hole in it");
    }
    const auto record = static_cast<int32_t>(records_ + i);
    Segment header;
    header.length = placement.data_offset - placement.header_offset;
    header.record = record;
    header.literal = static_cast<int32_t>(i);
    header.archive = archive;
    Add(header);
    Add(records[i], record);
  }
  if (begin + plan->TailOffset() != this->length()) {
    return absl::InternalError("zip plan with a hole in it");
  }
  Segment tail;
  tail.length = length - plan->TailOffset();
  tail.literal = static_cast<int32_t>(records.size());
  tail.archive = archive;
  Add(tail);
  records_ += records.size();
  return absl::OkStatus();
}

StatusOr<std::string> ObjectLayout::Literal(const Segment& segment,
                                            const std::vector<uint32_t>& crcs) const {
  const Archive& archive = archives_[segment.archive];
  if (segment.record >= 0) {
    return archive.plan->LocalHeader(static_cast<size_t>(segment.literal), crcs[segment.record]);
  }
  const size_t records = archive.plan->records().size();
  return archive.plan->Tail(absl::MakeConstSpan(crcs).subspan(archive.first_record, records),
                            archive.length);
}

}  // namespace cairn::client
