// What the engine knows, as rows of the catalog.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/catalog/catalog.h"
#include "server/engine/engine.h"
#include "server/node/options.h"

namespace cairn::node {

// As whom a node writes its rows.
catalog::Author AuthorOf(const Options& node);

// A row has one writer, so that none overwrites what another knows better: a part's is its owner, a holder's the
// holder, all others are the job's home's, or the node's that is alone. Each row takes the next number of `*sequence`,
// its place in the order of all rows.
std::vector<catalog::Row> RowsOf(const engine::Engine::Description& description,
                                 const catalog::Author& author, int64_t* sequence);

}  // namespace cairn::node
