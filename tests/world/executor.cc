#include "tests/world/executor.h"

#include <type_traits>
#include <utility>
#include <variant>

namespace cairn::world {
namespace {

template <typename Happens>
std::invoke_result_t<Happens> Unless(const Status& trouble, const Happens& happens) {
  if (!trouble.ok()) return trouble;
  return happens();
}

}  // namespace

using Kind = Task::Kind;

void Executor::CarryOut(engine::Action* action) {
  std::visit([this](auto& a) { Do(a); }, *action);
}

// --- memory

void Executor::Do(action::MakeSlab& a) {
  Task task{Kind::kMake, [this, slab = a.slab, bytes = a.bytes](const Status& trouble) -> Event {
              Made(slab, bytes, trouble);
              return event::SlabMade{slab, trouble};
            }};
  task.urgent = a.urgent;
  Begin(std::move(task));
}

void Executor::Do(action::DestroySlab& a) {
  Begin({Kind::kDestroy, [this, slab = a.slab](const Status&) -> Event {
           Destroyed(slab);
           return event::SlabDestroyed{slab};
         }});
}

void Executor::Do(action::ProbeSlab& a) {
  Begin({Kind::kProbe,
         [this, probe = std::move(a)](const Status&) -> Event { return Probe(probe); }});
}

void Executor::Do(action::WriteManifest& a) {
  Task task{Kind::kRecord, [this, write = a](const Status& trouble) -> Event {
              std::string manifest = EncodeManifest(*write.table);
              std::string digest = ManifestDigest(manifest);
              const Status status =
                  Unless(trouble, [&] { return WriteRecord(write, std::move(manifest)); });
              return event::ManifestWritten{write.part, write.extent, status, std::move(digest)};
            }};
  task.slabs = {a.extent.slab};
  Begin(std::move(task));
}

void Executor::Do(action::Verify& a) {
  Task task{Kind::kVerify, [this, verify = a](const Status& trouble) -> Event {
              const Status status = Unless(trouble, [&] { return Verify(verify); });
              return event::Verified{verify.verification, status, unix_ms()};
            }};
  task.slabs = {a.extent.slab};
  Begin(std::move(task));
}

// --- storage

void Executor::Do(action::Persist& a) {
  Task task{Kind::kPersist, {}};
  for (const auto& part : a.parts) {
    for (const auto& entry : part->entries) task.bytes += entry->length;
    for (const ExtentRef& extent : part->extents) task.slabs.push_back(extent.slab);
  }
  task.end = [this, persist = std::move(a)](const Status& trouble) -> Event {
    const StatusOr<bool> written = Unless(trouble, [&] { return Write(persist); });
    const CheckpointKey& key = persist.checkpoint;
    event::Persisted persisted{key, written.status()};
    persisted.awaits_others = written.ok() && !*written;
    persisted.location = storage_.LocationOf(key);
    return persisted;
  };
  Begin(std::move(task));
}

void Executor::Do(action::WriteLineRecord& a) {
  Begin({Kind::kLineRecord, [this, record = a.record](const Status& trouble) -> Event {
           auto stands = Unless(trouble, [&] { return storage_.Write(record, storage_unix_ms()); });
           return event::LineRecordWritten{record, std::move(stands)};
         }});
}

void Executor::Do(action::DeleteFiles& a) {
  Task task{Kind::kDelete, [this, deletion = a](const Status& trouble) -> Event {
              const Status status = Unless(trouble, [&] { return Delete(deletion); });
              return event::FilesDeleted{deletion.checkpoint, status};
            }};
  task.tombstone = a.tombstone;
  Begin(std::move(task));
}

void Executor::Do(action::ScanJob& a) {
  Begin({Kind::kScan, [this, job = a.job](const Status& trouble) -> Event {
           auto stored = Unless(trouble, [&] { return Scan(job); });
           const uint32_t owner = OwnerOf(job);
           return event::JobScanned{job, std::move(stored), owner, owner};
         }});
}

void Executor::Do(action::ReadTables& a) {
  Begin({Kind::kTables, [this, key = a.checkpoint](const Status& trouble) -> Event {
           auto stored = Unless(trouble, [&] { return storage_.Read(key); });
           return event::TablesRead{key, std::move(stored)};
         }});
}

void Executor::Do(action::ReadLineNumbers& a) {
  Begin({Kind::kNumbers, [this, job = a.job](const Status& trouble) -> Event {
           auto numbers = Unless(trouble, [&] { return storage_.Numbers(job); });
           return event::LineNumbersRead{job, std::move(numbers)};
         }});
}

}  // namespace cairn::world
