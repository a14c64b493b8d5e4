/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Control: changes that the daemon wants in state that the programs own. A
 * command is the packet of a test run, so it is carried out under the same
 * locks.
 */

/* Set the planes on which a peer takes packets. */
static __always_inline int set_ports(const struct mrc_command *cmd)
{
	struct mrc_balance *b = balance_get(cmd->peer);

	if (!b)
		return 1;
	b->ports = cmd->value;
	b->heard_ports = cmd->value;
	b->port_id = 0;
	return 0;
}

/* Deny or allow a path. */
static __always_inline int move_path(const struct mrc_command *cmd, u32 event)
{
	u32 qp = cmd->qp, id = cmd->path & PATH_ID_MASK;
	struct mrc_tx *tx = txs.lookup(&qp);
	struct mrc_path *path = path_get(qp, id);
	struct path_move move = {};

	if (!tx || !path || !(tx->all[slot_word(id)] & slot_bit(id)))
		return 1;
	bpf_spin_lock(&tx->lock);
	path_event(tx, id, event, &move);
	bpf_spin_unlock(&tx->lock);
	report_move(qp, id, path, &move, event, 0, bpf_ktime_get_ns());
	return 0;
}

/* Count slots of a reorder ring that the daemon has given back. */
static __always_inline int give_room(const struct mrc_command *cmd)
{
	u32 ring = cmd->path;
	struct mrc_room *room = rooms.lookup(&ring);

	if (!room)
		return 1;
	__sync_fetch_and_add(&room->free, cmd->value);
	return 0;
}

/* Try whether data of a length, in a framing, gets through on a path; with no length, a probe. */
static __always_inline int try_path(struct __sk_buff *skb, u32 qp, u32 id, u64 value)
{
	struct mrc_host *h = host_get();
	struct mrc_tx *tx = txs.lookup(&qp);
	struct mrc_qp *q = qps.lookup(&qp);
	struct mrc_path *path = path_get(qp, id);
	u64 now = bpf_ktime_get_ns();

	if (!h || !tx || !q || !path || q->state != MRC_QP_READY ||
	    !(tx->all[slot_word(id)] & slot_bit(id)))
		return 1;
	if (!(value & 0xffff))
		return write_probe(skb, h, qp, q, id, path, now) ? 1 : 0;
	return write_trial(skb, h, qp, q, tx, id, value & 0xffff, value >> 16 & 0xffff, now) ? 1 : 0;
}

/* Note the longest packet that gets through to a peer on a plane. */
static __always_inline int set_most(u32 peer, u32 plane, u32 len)
{
	struct mrc_balance *b = balance_get(peer);
	u32 p, least = 0, narrow = 0;

	if (!b || plane >= MRC_MAX_PLANES)
		return 1;
	b->most[plane & (MRC_MAX_PLANES - 1)] = len;
	#pragma unroll
	for (p = 0; p < MRC_MAX_PLANES; p++) {
		if (!b->most[p])
			continue;
		narrow |= 1u << p;
		if (!least || b->most[p] < least)
			least = b->most[p];
	}
	b->most_all = least;
	b->narrow = narrow;
	return 0;
}

/* Carry out a command. Returns 0, or 1 if it makes no sense. */
int mrc_control(struct __sk_buff *skb)
{
	void *data = SKB_DATA(skb), *end = SKB_END(skb);
	struct mrc_command *cmd = data;

	if (data + sizeof(*cmd) > end)
		return 1;
	if (cmd->op == MRC_DO_PORTS)
		return set_ports(cmd);
	if (cmd->op == MRC_DO_ROOM)
		return give_room(cmd);
	if (cmd->op == MRC_DO_MOST)
		return set_most(cmd->peer, cmd->path, cmd->value);
	if (cmd->op == MRC_DO_TRIAL)
		return try_path(skb, cmd->qp, cmd->path & PATH_ID_MASK, cmd->value);
	if (cmd->op == MRC_DO_DENY || cmd->op == MRC_DO_ALLOW)
		return move_path(cmd, cmd->op == MRC_DO_DENY ? MRC_ON_DENY : MRC_ON_ALLOW);
	return 1;
}
