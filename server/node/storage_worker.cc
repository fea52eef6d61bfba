#include "server/node/storage_worker.h"

#include <string>
#include <utility>

#include "common/failpoint.h"
#include "glog/logging.h"

namespace cairn::node {
namespace {

// As many jobs may hang at once before those that do not must wait for them.
constexpr int kThreads = 8;

}  // namespace

StorageWorker::StorageWorker(storage::Storage* storage, std::shared_ptr<EventGate> gate)
    : storage_(storage),
      gate_(std::move(gate)),
      executor_("storage", storage == nullptr ? 0 : kThreads, /*per_job=*/1) {}

void StorageWorker::Start(engine::action::DeleteFiles action) {
  const std::string job = action.checkpoint.job;
  executor_.Add(job, [this, action = std::move(action)] { DeleteFiles(action); });
}

void StorageWorker::Start(engine::action::WriteLineRecord action) {
  const std::string job = action.record.job;
  executor_.Add(job, [this, action = std::move(action)] {
    auto stands = storage_->WriteLineRecord(action.record, {action.uid, action.gid});
    gate_->Post(engine::event::LineRecordWritten{action.record, std::move(stands)});
  });
}

void StorageWorker::Start(engine::action::Reinstate action) {
  const std::string job = action.checkpoint.job;
  executor_.Add(job, [this, action = std::move(action)] {
    const Status status = storage_->Reinstate(action.checkpoint, {action.uid, action.gid});
    if (!status.ok()) {
      LOG(WARNING) << "job=" << action.checkpoint.job << " step=" << action.checkpoint.step
                   << " attempt=" << action.checkpoint.attempt
                   << " stays aside, where `cairn get` and load find it: " << status;
    }
  });
}

void StorageWorker::Start(engine::action::ScanJob action) {
  const std::string job = action.job;
  executor_.Add(job, [this, action = std::move(action)] { ScanJob(action); });
}

void StorageWorker::Start(engine::action::ReadTables action) {
  const std::string job = action.checkpoint.job;
  executor_.Add(job, [this, action = std::move(action)] {
    gate_->Post(
        engine::event::TablesRead{action.checkpoint, storage_->ReadCheckpoint(action.checkpoint)});
  });
}

void StorageWorker::Start(engine::action::ReadLineNumbers action) {
  const std::string job = action.job;
  executor_.Add(job, [this, action = std::move(action)] {
    gate_->Post(engine::event::LineNumbersRead{action.job, storage_->ReadLineNumbers(action.job)});
  });
}

void StorageWorker::DeleteFiles(const engine::action::DeleteFiles& action) {
  ReachFailpoint(Failpoint::kNodeDelete);
  const auto kind = !action.tombstone     ? storage::DeleteKind::kFiles
                    : action.this_attempt ? storage::DeleteKind::kThisAttempt
                                          : storage::DeleteKind::kUpToAttempt;
  Status status = storage_->Delete(action.checkpoint, {action.uid, action.gid}, kind,
                                   {action.newest_known, action.stays});
  ReachFailpoint(Failpoint::kNodeDeleted);
  if (!status.ok()) {
    LOG(WARNING) << "job=" << action.checkpoint.job << " step=" << action.checkpoint.step
                 << " files not deleted: " << status;
  }
  gate_->Post(engine::event::FilesDeleted{action.checkpoint, std::move(status)});
}

void StorageWorker::ScanJob(const engine::action::ScanJob& action) {
  engine::event::JobScanned scanned{action.job, storage_->ReadSummary(action.job), 0, 0};
  if (scanned.stored.ok()) {
    const StatusOr<storage::Owner> owner = storage_->JobOwner(action.job);
    if (owner.ok()) {
      scanned.owner_uid = owner->uid;
      scanned.owner_gid = owner->gid;
    } else {
      scanned.stored = owner.status();
    }
  }
  gate_->Post(std::move(scanned));
}

}  // namespace cairn::node
