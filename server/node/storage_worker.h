// Deletes a checkpoint's files (action::DeleteFiles), writes line records (action::WriteLineRecord), and
// reads what storage has of a job
// (action::ScanJob).
//
// One thread, apart from the persister's, so that neither waits for a persist. In the order of the
// actions: a scan that the engine asks for after a deletion does not find the deleted files.
#pragma once

#include <memory>

#include "server/engine/actions.h"
#include "server/node/event_gate.h"
#include "server/node/executor.h"
#include "server/storage/storage.h"

namespace cairn::node {

// Thread-safe.
class StorageWorker {
 public:
  // `storage` outlives the worker. It may be null: there is no thread then, and the engine, which
  // knows that there is no storage, asks for nothing.
  StorageWorker(storage::Storage* storage, std::shared_ptr<EventGate> gate);

  // Return at once; event::FilesDeleted, LineRecordWritten or JobScanned follows, unless Stop comes
  // first.
  void Start(engine::action::DeleteFiles action);
  void Start(engine::action::WriteLineRecord action);
  void Start(engine::action::ScanJob action);
  void Start(engine::action::ReadLineNumbers action);
  void Start(engine::action::Reinstate action);  // nothing follows
  void Stop() { executor_.Stop(); }

 private:
  void DeleteFiles(const engine::action::DeleteFiles& action);
  void ScanJob(const engine::action::ScanJob& action);

  storage::Storage* const storage_;
  const std::shared_ptr<EventGate> gate_;
  Executor executor_;  // last: its thread uses the members above
};

}  // namespace cairn::node
