/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the daemon wants changed in state that the programs own: a command is
 * the packet of a test run, so it is carried out under the same locks.
 */
int mrc_control(struct __sk_buff *skb)
{
	void *data = SKB_DATA(skb), *end = SKB_END(skb);
	struct mrc_command *cmd = data;
	struct path_move move = {};
	u32 qp, id, event;
	struct mrc_balance *b;
	struct mrc_path *path;
	struct mrc_tx *tx;

	if (data + sizeof(*cmd) > end)
		return 1;
	qp = cmd->qp;
	id = cmd->path & PATH_ID_MASK;
	if (cmd->op == MRC_DO_PORTS) {
		b = balance_get(cmd->peer);
		if (!b)
			return 1;
		b->ports = cmd->value;
		b->heard_ports = cmd->value;
		b->port_id = 0;
		return 0;
	}
	if (cmd->op != MRC_DO_DENY && cmd->op != MRC_DO_ALLOW)
		return 1;
	event = cmd->op == MRC_DO_DENY ? MRC_ON_DENY : MRC_ON_ALLOW;
	tx = txs.lookup(&qp);
	path = path_get(qp, id);
	if (!tx || !path || !(tx->all[slot_word(id)] & slot_bit(id)))
		return 1;
	bpf_spin_lock(&tx->lock);
	path_event(tx, id, event, &move);
	bpf_spin_unlock(&tx->lock);
	report_move(qp, id, path, &move, event, 0, bpf_ktime_get_ns());
	return 0;
}
