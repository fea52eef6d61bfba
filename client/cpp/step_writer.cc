// One file: an object is created, copied, sealed and committed on one session, and what goes wrong there ends all of it.
#include "client/cpp/step_writer.h"

#include <algorithm>
#include <utility>

#include "client/cpp/device_reader.h"
#include "client/cpp/process.h"
#include "client/cpp/standing_maps.h"
#include "proto/convert.h"

namespace cairn::client {
namespace {

constexpr absl::Duration kAbortPatience = absl::Seconds(1);
constexpr absl::Duration kSlabPatience = absl::Seconds(2);

// Objects of at least this size have a slab to themselves, whose descriptor may come with the create.
// More than kMaxOwnSlabsPerCreate at once would overrun the channel's socket and the usual limit of
// 1,024 descriptors per process.
constexpr uint64_t kOwnSlabBytes = 1 << 20;
constexpr size_t kMaxOwnSlabsPerCreate = 64;

wire::SealedObject AsSealed(const std::string& name, uint64_t length, const Written& written) {
  wire::SealedObject seal;
  seal.name = name;
  seal.length = static_cast<int64_t>(length);
  seal.block_crcs.assign(written.block_crcs.begin(), written.block_crcs.end());
  for (const auto& [begin, end] : written.covered) {
    seal.covered.push_back(static_cast<int64_t>(begin));
    seal.covered.push_back(static_cast<int64_t>(end));
  }
  return seal;
}

}  // namespace

StepWriterImpl::~StepWriterImpl() {
  const bool nobody_must_hear = attachment_ == nullptr && !OthersWait();
  if (done_ || nobody_must_hear || !link_->InThisProcess()) return;
  (void)Contain([&] { return AbortWithin(DeadlineAfter(kAbortPatience)); });
}

Status StepWriterImpl::Usable() const {
  CAIRN_RETURN_IF_ERROR(link_->CheckProcess());
  if (done_) {
    return absl::FailedPreconditionError(
        absl::StrCat("step ", identity_.step, " of this writer is committed or aborted"));
  }
  return failure_;
}

Status StepWriterImpl::Write(const std::string& name, ObjectKind kind,
                             absl::Span<const Source> sources) {
  return Contain([&]() -> Status {
    CAIRN_RETURN_IF_ERROR(Usable());
    CAIRN_ASSIGN_OR_RETURN(ObjectLayout layout, ObjectLayout::Of(sources, nullptr));
    std::vector<Pending> objects;
    objects.push_back({name, kind, std::move(layout), nullptr, {}});
    return Add(std::move(objects));
  });
}

Status StepWriterImpl::WriteZip(const std::string& name, ObjectKind kind, const ZipPlan& plan,
                                absl::Span<const Source> records) {
  return Contain([&]() -> Status {
    CAIRN_RETURN_IF_ERROR(Usable());
    CAIRN_ASSIGN_OR_RETURN(ObjectLayout layout, ObjectLayout::Of(records, &plan));
    std::vector<Pending> objects;
    objects.push_back({name, kind, std::move(layout), &plan, records});
    return Add(std::move(objects));
  });
}

StatusOr<std::vector<PiecePlace>> StepWriterImpl::WritePieces(const std::string& name,
                                                              ObjectKind kind,
                                                              absl::Span<const Piece> pieces) {
  std::vector<PiecePlace> places;
  const Status added = Contain([&]() -> Status {
    CAIRN_RETURN_IF_ERROR(Usable());
    for (const Piece& piece : pieces) CAIRN_RETURN_IF_ERROR(ValidateSources(piece.sources));
    CAIRN_ASSIGN_OR_RETURN(ObjectLayout layout, ObjectLayout::Pieces(pieces, &places));
    if (layout.length() > kMaxObjectBytes) {
      return absl::InvalidArgumentError(absl::StrCat("length: more than ", kMaxObjectBytes));
    }
    std::vector<Pending> objects;
    objects.push_back({name, kind, std::move(layout), nullptr, {}});
    return Add(std::move(objects));
  });
  CAIRN_RETURN_IF_ERROR(added);
  return places;
}

Status StepWriterImpl::WriteMany(absl::Span<const Item> items) {
  return Contain([&]() -> Status {
    CAIRN_RETURN_IF_ERROR(Usable());
    std::vector<Pending> objects;
    objects.reserve(items.size());
    for (const Item& item : items) {
      StatusOr<ObjectLayout> layout = ObjectLayout::Of(item.sources, item.plan);
      if (!layout.ok()) return Annotate(layout.status(), item.name);
      objects.push_back({item.name, item.kind, *std::move(layout), item.plan, item.sources});
    }
    return objects.empty() ? absl::OkStatus() : Add(std::move(objects));
  });
}

// --- objects that are copied

Status StepWriterImpl::Add(std::vector<Pending> objects) {
  std::vector<Place> places;
  CAIRN_RETURN_IF_ERROR(CreateAll(objects, &places));
  std::vector<Written> written;
  Status copied;
  if (attachment_->fds != nullptr) {
    copied = CopyIntoSlabs(&objects, places, &written);
  } else {
    written.resize(objects.size());
    for (size_t i = 0; i < objects.size() && copied.ok(); ++i) {
      copied = SendInChunks(objects[i].layout, static_cast<LeaseId>(places[i].extent.lease),
                            &written[i]);
    }
  }
  if (!copied.ok()) {
    failure_ = Annotate(copied, absl::StrCat("writing ", objects[0].name));
    return failure_;
  }
  for (size_t i = 0; i < objects.size(); ++i) {
    const uint64_t length = objects[i].layout.length();
    seals_.push_back(AsSealed(objects[i].name, length, written[i]));
    bytes_written_ += length;
  }
  return absl::OkStatus();
}

// --- objects that their caller fills

StatusOr<StepWriter::Buffer> StepWriterImpl::Reserve(const std::string& name, ObjectKind kind,
                                                     uint64_t length) {
  Buffer buffer;
  const Status status = Contain([&]() -> Status {
    CAIRN_RETURN_IF_ERROR(Usable());
    if (length > kMaxObjectBytes) {
      return absl::InvalidArgumentError(absl::StrCat("length: more than ", kMaxObjectBytes));
    }
    const Source to_come = {nullptr, length};
    std::vector<Pending> objects;
    objects.push_back(
        {name, kind, ObjectLayout::Raw(absl::MakeConstSpan(&to_come, 1)), nullptr, {}});
    std::vector<Place> places;
    CAIRN_RETURN_IF_ERROR(CreateAll(objects, &places));
    Reserved reserved = {length, static_cast<LeaseId>(places[0].extent.lease), nullptr, nullptr};
    StatusOr<Buffer> made = MakeBuffer(places[0], &reserved);
    if (!made.ok()) return failure_ = Annotate(made.status(), absl::StrCat("reserving ", name));
    reserved_.emplace(name, std::move(reserved));
    buffer = *std::move(made);
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  return buffer;
}

StatusOr<StepWriter::Buffer> StepWriterImpl::MakeBuffer(const Place& place, Reserved* reserved) {
  const uint64_t length = reserved->length;
  if (length == 0) return Buffer{};
  if (place.slab == nullptr) {
    CAIRN_ASSIGN_OR_RETURN(HugeMemory memory, HugeMemory::Make(length));
    reserved->memory = std::make_shared<HugeMemory>(std::move(memory));
    return Buffer{reserved->memory, reserved->memory->data(), length, {}};
  }
  const auto offset = static_cast<uint64_t>(place.extent.offset);
  CAIRN_ASSIGN_OR_RETURN(reserved->view,
                         SlabView::Make(place.slab, offset, length, link_->copy_threads()));
  StandingPlace standing = PlaceOf(place.extent);
  standing.offset = offset;
  return Buffer{reserved->view, reserved->view->data(), length, std::move(standing)};
}

Status StepWriterImpl::EndBuffers(const ReservedMap& reserved) {
  Status first;
  for (const auto& [name, object] : reserved) {
    if (object.view == nullptr) continue;
    const Status ended = object.view->End();
    if (first.ok()) first = Annotate(ended, name);
  }
  return first;
}

void StepWriterImpl::DropBuffers(ReservedMap reserved) {
  (void)EndBuffers(reserved);
  for (const auto& [name, object] : reserved) {
    if (object.view != nullptr) object.view->Leave();
  }
}

Status StepWriterImpl::Seal(const std::string& name) {
  return Contain([&]() -> Status {
    CAIRN_RETURN_IF_ERROR(Usable());
    ReservedMap one;
    one.insert(reserved_.extract(name));
    if (one.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("name: ", name, " is not reserved in step ", identity_.step, ", or sealed"));
    }
    return SealReserved(std::move(one));
  });
}

Status StepWriterImpl::SealReserved(ReservedMap reserved) {
  if (reserved.empty()) return absl::OkStatus();
  // Until the end: an exception must not lead to a commit without these objects.
  failure_ =
      absl::InternalError(absl::StrCat("sealing ", reserved.begin()->first, " was not finished"));
  // What is written after this is lost. So the checksums are those of the bytes that stay, whoever goes on writing.
  const Status ended = EndBuffers(reserved);
  if (!ended.ok()) return failure_ = Annotate(ended, "sealing");
  std::vector<ChecksumTask> tasks;
  for (const auto& [name, object] : reserved) {
    if (object.view != nullptr) {
      tasks.push_back({object.view->bytes(), object.length});
    } else {
      tasks.push_back({});
    }
  }
  std::vector<Written> written;
  ChecksumObjects(link_->copy_threads(), tasks, attachment_->progress(), &written, beside_);
  auto next = written.begin();
  for (const auto& [name, object] : reserved) {
    if (object.view != nullptr) object.view->Leave();
    if (object.memory != nullptr) {
      const Source source = {object.memory->data(), object.length};
      const Status sent =
          SendInChunks(ObjectLayout::Raw(absl::MakeConstSpan(&source, 1)), object.lease, &*next);
      if (!sent.ok()) return failure_ = Annotate(sent, absl::StrCat("sealing ", name));
    }
    seals_.push_back(AsSealed(name, object.length, *next++));
    bytes_written_ += object.length;
  }
  return failure_ = absl::OkStatus();
}

// --- where objects lie

Status StepWriterImpl::CreateAll(const std::vector<Pending>& objects, std::vector<Place>* places) {
  std::set<std::string> names;
  for (const Pending& object : objects) {
    CAIRN_RETURN_IF_ERROR(ValidateObjectName(object.name));
    if (names_.contains(object.name) || !names.insert(object.name).second) {
      return absl::AlreadyExistsError(
          absl::StrCat("name: ", object.name, " is already in step ", identity_.step));
    }
  }
  const MonotonicNanos deadline = link_->Deadline(timeout_);
  places->reserve(objects.size());
  const absl::Span<const Pending> all = objects;
  for (size_t begin = 0, end = 0; begin < objects.size(); begin = end) {
    end = EndOfCreate(objects, begin);
    const Status created =
        Create(all.subspan(begin, end - begin), Sum(all.subspan(end)), deadline, places);
    if (created.ok()) continue;
    // Without an answer it is unknown whether the objects exist; a refusal changes nothing.
    if (absl::IsUnavailable(created) || begin > 0) failure_ = created;
    return created;
  }
  names_.merge(names);
  return absl::OkStatus();
}

// Where the objects end that one create may ask for.
size_t StepWriterImpl::EndOfCreate(const std::vector<Pending>& objects, size_t begin) {
  const size_t most = std::min(objects.size(), begin + kMaxObjectsPerCall);
  size_t end = begin;
  for (size_t own = 0; end < most; ++end) {
    if (objects[end].layout.length() >= kOwnSlabBytes && ++own > kMaxOwnSlabsPerCreate) break;
  }
  return end;
}

void StepWriter::Room::Add(uint64_t length, size_t name_length) {
  ++objects;
  bytes += (length + kPageBytes - 1) / kPageBytes * kPageBytes;
  name_bytes += name_length;
}

StepWriter::Room StepWriterImpl::Sum(absl::Span<const Pending> objects) {
  Room sum;
  for (const Pending& object : objects) sum.Add(object.layout.length(), object.name.size());
  return sum;
}

Status StepWriterImpl::SetAside(const Room& room, absl::Duration patience) {
  return Contain([&]() -> Status {
    CAIRN_RETURN_IF_ERROR(Usable());
    std::vector<Place> places;
    // Only the room is not waited for; the daemon may be slow to answer.
    const Status created = Create({}, room, link_->Deadline(timeout_), &places, patience);
    if (!created.ok()) failure_ = created;
    return created;
  });
}

Status StepWriterImpl::Create(absl::Span<const Pending> objects, const Room& to_come,
                              MonotonicNanos deadline, std::vector<Place>* places,
                              absl::Duration patience) {
  wire::CreateReply reply;
  wire::CreateRequest request;
  request.step = identity_.step;
  request.attempt = identity_.attempt;
  request.revision = identity_.revision;
  request.writer = identity_.writer;
  request.world_size = identity_.world_size;
  request.objects.reserve(objects.size());
  uint64_t total = 0;
  for (const Pending& object : objects) {
    wire::ObjectSpec spec;
    spec.name = object.name;
    spec.length = static_cast<int64_t>(object.layout.length());
    spec.kind = ToWire(object.kind);
    spec.can_pad = object.plan != nullptr;
    request.objects.push_back(std::move(spec));
    total += object.layout.length();
  }
  if (to_come.objects > 0) {
    wire::ToCome sum;
    sum.__set_objects(static_cast<int64_t>(to_come.objects));
    sum.__set_bytes(static_cast<int64_t>(to_come.bytes));
    sum.__set_name_bytes(static_cast<int64_t>(to_come.name_bytes));
    request.__set_to_come(sum);
  }
  request.__set_fence(link_->options().fence);
  Link::FdCall fd_call(link_.get());  // until the descriptors are taken
  // Memory may be short because this session still maps what it wrote before. Then the answer has only
  // slabs to unmap first, and the call is repeated.
  for (;;) {
    CAIRN_RETURN_IF_ERROR(AskForExtents(&request, deadline, patience, &reply));
    if (!reply.extents.empty() || objects.empty() || reply.retire.empty()) break;
    if (RealClock()->Now() >= deadline) {
      return absl::ResourceExhaustedError(
          "memory: what this session still maps was not unmapped by the deadline");
    }
  }
  // From here on the objects exist, and whatever goes wrong leaves them half there.
  if (reply.extents.size() != objects.size()) {
    return failure_ = absl::InternalError(absl::StrCat("create of ", objects.size(),
                                                       " objects was answered with ",
                                                       reply.extents.size(), " extents"));
  }
  for (size_t i = 0; i < objects.size(); ++i) {
    Place place = {reply.extents[i], nullptr};
    if (place.extent.length < request.objects[i].length || place.extent.offset < 0) {
      return failure_ = absl::InternalError("create was answered with an extent that is too short");
    }
    if (attachment_->fds != nullptr && request.objects[i].length > 0) {
      StatusOr<std::shared_ptr<MappedSlab>> slab = Slab(place.extent, deadline);
      if (!slab.ok()) return failure_ = slab.status();
      place.slab = *std::move(slab);
    }
    places->push_back(std::move(place));
  }
  Announce(total);
  return absl::OkStatus();
}

Status StepWriterImpl::AskForExtents(wire::CreateRequest* request, MonotonicNanos deadline,
                                     absl::Duration patience, wire::CreateReply* reply) {
  const int64_t call = link_->NextCall();
  std::vector<int64_t> unmapped;  // of the session the request went to
  std::shared_ptr<Attachment> asked = attachment_;
  const Status status = link_->Call(
      "create", deadline,
      [&](wire::CairnClient& client, const std::shared_ptr<Attachment>& attachment) {
        if (asked != attachment) unmapped.clear();
        asked = attachment;
        for (int64_t slab : attachment->slabs.TakeUnmapped()) unmapped.push_back(slab);
        request->unmapped = unmapped;
        request->timeout_ms =
            std::min(Link::TimeoutMillis(deadline), absl::ToInt64Milliseconds(patience));
        client.create(*reply, call, *request);
      },
      attachment_.get());
  if (!status.ok()) {
    if (asked != nullptr) asked->slabs.ReturnUnmapped(unmapped);
    return status;
  }
  attachment_ = std::move(asked);
  for (int64_t slab : reply->retire) attachment_->slabs.Retire(static_cast<SlabId>(slab));
  return absl::OkStatus();
}

StatusOr<std::shared_ptr<MappedSlab>> StepWriterImpl::Slab(const wire::Extent& extent,
                                                           MonotonicNanos deadline) {
  const auto id = static_cast<SlabId>(extent.slab);
  std::shared_ptr<MappedSlab> slab = attachment_->slabs.Find(id);
  if (slab == nullptr) {
    CAIRN_ASSIGN_OR_RETURN(
        const ReceivedFd received,
        attachment_->fds->Take(static_cast<LeaseId>(extent.lease),
                               std::min(deadline, DeadlineAfter(kSlabPatience))));
    if (received.slab != id || received.bytes != static_cast<uint64_t>(extent.slab_bytes)) {
      return absl::InternalError(absl::StrCat("lease ", extent.lease, " came with slab ",
                                              received.slab, ", not ", extent.slab));
    }
    CAIRN_ASSIGN_OR_RETURN(slab, attachment_->slabs.Map(id, received.bytes, received.fd));
  }
  if (static_cast<uint64_t>(extent.offset) > slab->bytes() ||
      static_cast<uint64_t>(extent.length) > slab->bytes() - extent.offset) {
    return absl::InternalError("create was answered with an extent beyond its slab");
  }
  return slab;
}

Status StepWriterImpl::CopyIntoSlabs(std::vector<Pending>* objects,
                                     const std::vector<Place>& places,
                                     std::vector<Written>* written) {
  std::vector<CopyTask> tasks;
  tasks.reserve(objects->size());
  for (size_t i = 0; i < objects->size(); ++i) {
    Pending& object = (*objects)[i];
    const auto& [extent, slab] = places[i];
    if (slab == nullptr) {
      tasks.push_back({&object.layout, nullptr, false});
      continue;
    }
    const uint64_t room = static_cast<uint64_t>(extent.length);
    if (object.plan != nullptr && extent.offset == 0 && room == slab->bytes() &&
        room - object.layout.length() <= kZipMaxGap) {
      CAIRN_ASSIGN_OR_RETURN(object.layout, ObjectLayout::Zip(object.plan, object.records, room));
    }
    for (DeviceReader* device : object.layout.devices()) {
      device->Into({slab->data(), slab->bytes(), PlaceOf(extent)});
    }
    // Only the pages that this object covers get entries in the page table. A longer object that comes
    // later finds the rest as in a new mapping.
    tasks.push_back({&object.layout, slab->data() + extent.offset, slab->TakeUnpopulated()});
  }
  return CopyObjects(link_->copy_threads(), tasks, attachment_->progress(), written, beside_);
}

Status StepWriterImpl::SendInChunks(const ObjectLayout& layout, LeaseId lease, Written* written) {
  return SendObject(
      layout, nullptr,
      [&](uint64_t offset, absl::string_view bytes) {
        const int64_t call = link_->NextCall();
        const std::string data(bytes);
        return link_->Call(
            "writeChunk", link_->Deadline(timeout_),
            [&](wire::CairnClient& client, const std::shared_ptr<Attachment>&) {
              client.writeChunk(call, static_cast<int64_t>(lease), static_cast<int64_t>(offset),
                                data);
            },
            attachment_.get());
      },
      written);
}

StandingPlace StepWriterImpl::PlaceOf(const wire::Extent& extent) const {
  return {absl::StrCat("slab ", extent.slab, " of session ", attachment_->session, " by lease ",
                       extent.lease),
          0,
          [link = link_, attachment = attachment_,
           lease = static_cast<LeaseId>(extent.lease)](std::function<void()> wanted_back) {
            return link->standing().Map(attachment, lease, std::move(wanted_back));
          }};
}

void StepWriterImpl::Announce(uint64_t more_bytes) {
  ProgressPage* page = attachment_->progress();
  if (page == nullptr) return;
  std::atomic_ref<uint64_t>(page->step).store(static_cast<uint64_t>(identity_.step));
  std::atomic_ref<uint64_t>(page->bytes_total).fetch_add(more_bytes);
}

void StepWriterImpl::AnnounceEnd() {
  ProgressPage* page = attachment_ == nullptr ? nullptr : attachment_->progress();
  if (page == nullptr) return;
  std::atomic_ref<uint64_t>(page->bytes_total).store(0);
  std::atomic_ref<uint64_t>(page->bytes_done).store(0);
}

wire::CommitRequest StepWriterImpl::TakeSeals() {
  wire::CommitRequest request;
  request.step = identity_.step;
  request.attempt = identity_.attempt;
  request.revision = identity_.revision;
  request.writer = identity_.writer;
  request.world_size = identity_.world_size;
  request.seals = std::move(seals_);
  return request;
}

StatusOr<CommitResult> StepWriterImpl::Commit(const std::map<std::string, std::string>& notes) {
  CommitResult result;
  const Status status = Contain([&]() -> Status {
    CAIRN_RETURN_IF_ERROR(Usable());
    CAIRN_RETURN_IF_ERROR(SealReserved(std::exchange(reserved_, {})));
    wire::CommitRequest request = TakeSeals();
    request.notes = notes;
    request.__set_fence(link_->options().fence);
    // Without a create it is this call that begins the attempt, and it waits for an older one's end.
    const bool may_begin = attachment_ == nullptr;
    const MonotonicNanos deadline = link_->Deadline(timeout_);
    const int64_t call = link_->NextCall();
    wire::CommitReply reply;
    std::shared_ptr<Attachment> asked;
    const Status committed = link_->Call(
        "commit", deadline,
        [&](wire::CairnClient& client, const std::shared_ptr<Attachment>& attachment) {
          if (asked != attachment) request.unmapped.clear();
          asked = attachment;
          for (int64_t slab : attachment->slabs.TakeUnmapped()) request.unmapped.push_back(slab);
          if (may_begin) request.timeout_ms = Link::TimeoutMillis(deadline);
          client.commit(reply, call, request);
        },
        attachment_.get());
    seals_ = std::move(request.seals);
    if (!committed.ok()) {
      if (asked != nullptr) asked->slabs.ReturnUnmapped(request.unmapped);
      return committed;
    }
    result.digest = reply.digest;
    result.complete = reply.complete;
    done_ = true;
    AnnounceEnd();
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  return result;
}

Status StepWriterImpl::Abort() {
  return Contain([&]() -> Status {
    CAIRN_RETURN_IF_ERROR(link_->CheckProcess());
    if (done_) return absl::OkStatus();
    const bool created = attachment_ != nullptr || !failure_.ok();
    return AbortWithin(created ? link_->Deadline(timeout_) : DeadlineAfter(kAbortPatience));
  });
}

Status StepWriterImpl::AbortWithin(MonotonicNanos deadline) {
  done_ = true;
  DropBuffers(std::exchange(reserved_, {}));
  const bool created = attachment_ != nullptr || !failure_.ok();
  if (!created && !OthersWait()) return absl::OkStatus();
  wire::AbortRequest request;
  request.step = identity_.step;
  request.attempt = identity_.attempt;
  request.revision = identity_.revision;
  request.writer = identity_.writer;
  request.world_size = identity_.world_size;
  const int64_t call = link_->NextCall();
  const Status status = link_->Call(
      "abort", deadline,
      [&](wire::CairnClient& client, const std::shared_ptr<Attachment>&) {
        client.abort(call, request);
      },
      attachment_.get());
  AnnounceEnd();
  // A daemon that has forgotten the session holds nothing of this step any more.
  if (absl::IsUnavailable(status) && link_->attachment() != attachment_) return absl::OkStatus();
  return created ? status : absl::OkStatus();  // there was nothing to drop
}

}  // namespace cairn::client
