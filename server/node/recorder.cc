#include "server/node/recorder.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "glog/logging.h"

namespace cairn::node {
namespace {

int64_t SequenceOf(const catalog::Row& row) {
  return std::visit([](const auto& r) { return r.sequence; }, row);
}

}  // namespace

Recorder::Recorder(const RecorderOptions& options, OpenCatalog open)
    : options_(options), open_(std::move(open)) {
  if (open_) thread_ = std::thread([this] { Run(); });
}

void Recorder::Put(std::vector<catalog::Row> rows) {
  if (!open_) return;
  MutexLock lock(&mu_);
  for (catalog::Row& row : rows) {
    std::string identity = catalog::RowIdentity(row);
    dirty_.insert_or_assign(std::move(identity), std::move(row));
  }
  wake_.NotifyOne();
}

std::string Recorder::State() const {
  if (!open_) return "off";
  MutexLock lock(&mu_);
  if (!problem_.ok()) {
    return absl::StrCat("sqlite: behind by ", dirty_.size(), " rows: ", problem_.message());
  }
  if (dirty_.empty() && !writing_) return "sqlite: up to date";
  return absl::StrCat("sqlite: writing, behind by ", dirty_.size(), " rows");
}

void Recorder::Flush(int deadline_ms) {
  if (!open_) return;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(deadline_ms);
  MutexLock lock(&mu_);
  while ((!dirty_.empty() || writing_) && problem_.ok() && !stopping_) {
    if (!idle_.WaitUntil(&mu_, deadline)) return;
  }
}

void Recorder::Stop() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    wake_.NotifyAll();
    idle_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

// Waits for rows, and after a failure for `backoff_ms` as well; empty: stopping.
Recorder::Batch Recorder::TakeBatch(int backoff_ms) {
  Batch batch;
  MutexLock lock(&mu_);
  while (dirty_.empty() && !stopping_) wake_.Wait(&mu_);
  if (backoff_ms > 0) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(backoff_ms);
    while (!stopping_ && wake_.WaitUntil(&mu_, until)) {
    }
  }
  if (stopping_) return batch;
  while (!dirty_.empty() && batch.size() < static_cast<size_t>(options_.batch_rows)) {
    auto first = dirty_.begin();
    batch.emplace_back(first->first, std::move(first->second));
    dirty_.erase(first);
  }
  writing_ = true;
  return batch;
}

Status Recorder::Write(const Batch& batch, std::unique_ptr<catalog::Catalog>* catalog) const {
  try {
    if (*catalog == nullptr) {
      CAIRN_ASSIGN_OR_RETURN(*catalog, open_());
    }
    std::vector<catalog::Row> rows;
    rows.reserve(batch.size());
    for (const auto& [identity, row] : batch) rows.push_back(row);
    return (*catalog)->Apply(rows);
  } catch (const std::exception& e) {
    return absl::InternalError(e.what());
  }
}

// Puts the batch back when it was not written. True: the catalog went away, or came back.
bool Recorder::Settle(Batch batch, const Status& status) {
  MutexLock lock(&mu_);
  const bool changed = problem_.ok() != status.ok();
  problem_ = status;
  writing_ = false;
  if (!status.ok()) {
    for (auto& [identity, row] : batch) {
      // A version that was put meanwhile is newer.
      auto [it, fresh] = dirty_.try_emplace(identity, row);
      if (!fresh && SequenceOf(it->second) < SequenceOf(row)) it->second = std::move(row);
    }
  }
  idle_.NotifyAll();
  return changed;
}

void Recorder::Run() {
  pthread_setname_np(pthread_self(), "recorder");
  std::unique_ptr<catalog::Catalog> catalog;
  int backoff_ms = 0;
  for (;;) {
    Batch batch = TakeBatch(backoff_ms);
    if (batch.empty()) return;
    const Status status = Write(batch, &catalog);
    const bool changed = Settle(std::move(batch), status);
    if (!status.ok()) {
      if (changed) LOG(WARNING) << "catalog is away, saving goes on without it: " << status;
      backoff_ms = std::clamp(backoff_ms * 2, options_.retry_min_ms, options_.retry_max_ms);
    } else {
      if (changed) LOG(INFO) << "catalog is back";
      backoff_ms = 0;
    }
  }
}

}  // namespace cairn::node
